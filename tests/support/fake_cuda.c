/* A small libcuda for tests: two devices with the driver attributes that the inventory asks for. */
#include <stdlib.h>
#include <string.h>
#define API __attribute__((visibility("default")))
static int initialized;
API int cuInit(unsigned flags) { (void)flags; if (getenv("FAKE_CUDA_HANG")) for (;;) {} initialized = 1; return 0; }
API int cuDeviceGetCount(int *n) { if (!initialized) return 3; *n = getenv("CUDA_VISIBLE_DEVICES") ? 0 : 2; return 0; }
API int cuDeviceGet(int *d, int ordinal) { if (!initialized) return 3; *d = ordinal; return 0; }
API int cuDeviceGetUuid_v2(unsigned char *u, int d) {
  static const unsigned char prefix[16] = {0xfa, 0x4e};
  memcpy(u, prefix, 16); u[15] = (unsigned char)d; return 0;
}
API int cuDeviceGetAttribute(int *v, int attribute, int d) {
  (void)d;
  switch (attribute) {
    case 16: *v = 132; return 0;
    case 38: *v = 52428800; return 0;
    case 81: *v = 233472; return 0;
    case 39: *v = 2048; return 0;
    case 10: *v = 32; return 0;
    default: return 1;
  }
}
