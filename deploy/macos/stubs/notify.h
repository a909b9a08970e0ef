// What we call of notify(3), see CoreFoundation/CoreFoundation.h. Apple's header includes dispatch
// too, which declares what torch/mps.h declares otherwise.
#pragma once
#include <dispatch/dispatch.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NOTIFY_STATUS_OK 0

uint32_t notify_register_check(const char* name, int* token);
uint32_t notify_get_state(int token, uint64_t* state);

#ifdef __cplusplus
}
#endif
