// What we call of IOKit, see CoreFoundation/CoreFoundation.h.
#pragma once
#include <CoreFoundation/CoreFoundation.h>
#include <dispatch/dispatch.h>
#include <mach/mach.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef kern_return_t IOReturn;
typedef mach_port_t io_object_t;
typedef io_object_t io_connect_t;
typedef io_object_t io_service_t;
typedef struct IONotificationPort* IONotificationPortRef;
typedef void (*IOServiceInterestCallback)(void* context, io_service_t service, uint32_t message,
                                          void* argument);
enum { kIOReturnSuccess = KERN_SUCCESS };

kern_return_t IOServiceClose(io_connect_t connection);
void IONotificationPortDestroy(IONotificationPortRef port);
void IONotificationPortSetDispatchQueue(IONotificationPortRef port, dispatch_queue_t queue);

#ifdef __cplusplus
}
#endif
