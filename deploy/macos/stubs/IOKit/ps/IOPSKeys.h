// Keys of power sources, see CoreFoundation/CoreFoundation.h.
#pragma once

#define kIOPSTypeKey "Type"
#define kIOPSCurrentCapacityKey "Current Capacity"
#define kIOPSMaxCapacityKey "Max Capacity"
#define kIOPSInternalBatteryType "InternalBattery"
#define kIOPSUPSType "UPS"
