// What we call of IOKit's power sources, see CoreFoundation/CoreFoundation.h.
#pragma once
#include <CoreFoundation/CoreFoundation.h>

#ifdef __cplusplus
extern "C" {
#endif

#define kIOPSTimeRemainingUnlimited ((CFTimeInterval)-2.0)

CFTypeRef IOPSCopyPowerSourcesInfo(void);
CFArrayRef IOPSCopyPowerSourcesList(CFTypeRef info);
CFDictionaryRef IOPSGetPowerSourceDescription(CFTypeRef info, CFTypeRef source);
CFTimeInterval IOPSGetTimeRemainingEstimate(void);

#ifdef __cplusplus
}
#endif
