/* A small libnvidia-ml for tests: GPUs whose metrics follow a ramp of known integral.
 *
 * Compiled by support/fake_nvidia.py and handed to a private copy of pynvml, so that no other test sees it. Tests steer
 * it through the fake_* functions: the clock, failures of single functions on single GPUs, XID events.
 *
 * Waveform: level(gpu, t) climbs from 0.2 to 0.8 within each period and is multiplied by (1 - gpu/16).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_FAILURES 64
#define MAX_XIDS 64
#define MAX_MIG 7
#define MAX_PROCESSES 32
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10,
       VERSION_MISMATCH = 25 };
typedef int result;
typedef unsigned long long u64;
typedef struct { int index, instance; } gpu_t; /* instance: -1 for a whole GPU, else its slot */
typedef gpu_t *device;
typedef struct { char function[64]; int gpu; int code; } failure_t;

static gpu_t gpus[MAX_GPUS], instances[MAX_GPUS][MAX_MIG];
static int mig_mode[MAX_GPUS];
static struct { int slices, gpu_instance, compute_instance, generation; } migs[MAX_GPUS][MAX_MIG];
static struct { int gpu, instance; unsigned pid; } processes[MAX_PROCESSES];
static int process_count, zeros;
static double excess;
static int gpu_count, initialized, with_gpm;
static double fixed_time, period;
static failure_t failures[MAX_FAILURES];
static int failure_count;
static struct { int gpu; u64 code; unsigned gi; } xids[MAX_XIDS];
static int xid_count, live_samples, live_event_sets;
static long calls;
static double call_s;

/* ---- steering ---- */
API void fake_reset(int count, int gpm, double period_s) {
  gpu_count = count; with_gpm = gpm; period = period_s; fixed_time = -1; failure_count = 0; xid_count = 0; calls = 0;
  process_count = 0; zeros = 0; excess = 1; memset(mig_mode, 0, sizeof mig_mode); memset(migs, 0, sizeof migs);
  for (int i = 0; i < MAX_GPUS; i++) {
    gpus[i].index = i; gpus[i].instance = -1;
    for (int k = 0; k < MAX_MIG; k++) { instances[i][k].index = i; instances[i][k].instance = k; }
  }
}
/* A slot with no slices is empty. The generation is part of the UUID: an instance made anew is another one. */
API void fake_set_mig(int gpu, int slot, int slices, int gpu_instance, int compute_instance, int generation) {
  mig_mode[gpu] = 1; migs[gpu][slot].slices = slices; migs[gpu][slot].gpu_instance = gpu_instance;
  migs[gpu][slot].compute_instance = compute_instance; migs[gpu][slot].generation = generation;
}
/* Profiling values are zero, whatever the GPU does. */
API void fake_set_zeros(int on) { zeros = on; }
/* Factor of the instances' SM activity, which real drivers report above 100 %. */
API void fake_set_excess(double factor) { excess = factor; }
API void fake_set_count(int count) { gpu_count = count; }
API void fake_add_process(int gpu, int instance, unsigned pid) {
  processes[process_count].gpu = gpu; processes[process_count].instance = instance; processes[process_count++].pid = pid;
}
API void fake_set_time(double seconds) { fixed_time = seconds; }
API void fake_fail(const char *function, int gpu, int code) {
  failure_t *f = &failures[failure_count++ % MAX_FAILURES];
  snprintf(f->function, sizeof f->function, "%s", function); f->gpu = gpu; f->code = code;
}
API void fake_heal(void) { failure_count = 0; }
API void fake_push_xid(int gpu, unsigned code, unsigned gi) {
  xids[xid_count].gpu = gpu; xids[xid_count].gi = gi; xids[xid_count++].code = code;
}
API int fake_live_samples(void) { return live_samples; }
API int fake_live_event_sets(void) { return live_event_sets; }
API int fake_initialized(void) { return initialized; }
API long fake_calls(void) { return calls; }

static double now(void) {
  struct timespec t;
  if (fixed_time >= 0) return fixed_time;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
API double fake_level(int gpu, double t) {
  double r = t - period * (double)(int64_t)(t / period);
  return (1.0 - gpu / 16.0) * (0.2 + 0.6 * r / period);
}
API double fake_integral(int gpu, double t) {
  double whole = (double)(int64_t)(t / period), r = t - period * whole;
  return (1.0 - gpu / 16.0) * (0.5 * period * whole + 0.2 * r + 0.3 * r * r / period);
}
/* The driver does not sleep while a GPU answers: it asks again and again, on its caller's core. */
static void keep_busy(void) {
  struct timespec begun, t;
  if (call_s <= 0) return;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  do clock_gettime(CLOCK_MONOTONIC, &t);
  while ((double)(t.tv_sec - begun.tv_sec) + 1e-9 * (double)(t.tv_nsec - begun.tv_nsec) < call_s);
}
static result forced(const char *function, int gpu) {
  calls++;
  for (int i = 0; i < failure_count && i < MAX_FAILURES; i++)
    if ((failures[i].gpu < 0 || failures[i].gpu == gpu) &&
        (!strcmp(failures[i].function, function) || !strcmp(failures[i].function, "*")))
      return failures[i].code;
  return OK;
}
/* A stand-in that nobody lets fail must cost nothing: it is measured with. */
static result forced_number(const char *what, unsigned number, int gpu) {
  char name[32];
  if (!failure_count) { calls++; return OK; }
  sprintf(name, "%s:%u", what, number);
  return forced(name, gpu);
}
#define ENTER do { if (!initialized) return UNINITIALIZED; result f_ = forced(__func__, -2); if (f_) return f_; } while (0)
#define DEVICE int i; do { if (!initialized) return UNINITIALIZED; if (!d) return INVALID; i = d->index; (void)i; \
  keep_busy(); result f_ = forced(__func__, i); if (f_) return f_; } while (0)
static double level(int i) { return fake_level(i, now()); }
/* An instance does a little less than its GPU, by its slot. */
static double part(device d) { return d->instance < 0 ? 1.0 : 1.0 - 0.1 * d->instance; }
static result put(char *b, unsigned n, const char *s) { if (strlen(s) + 1 > n) return TOO_SMALL; strcpy(b, s); return OK; }

/* ---- library ---- */
API result nvmlInitWithFlags(unsigned flags) {
  (void)flags; result f = forced("nvmlInit", -2); if (f) return f;
  /* For processes that nobody steers: how many GPUs there are. */
  if (!gpu_count && getenv("FAKE_NVML_GPUS")) fake_reset(atoi(getenv("FAKE_NVML_GPUS")), 1, 20);
  /* What a call that asks a GPU takes of its caller's core, in microseconds; without it, nothing. */
  call_s = getenv("FAKE_NVML_CALL_US") ? 1e-6 * atof(getenv("FAKE_NVML_CALL_US")) : 0;
  initialized++; return OK;
}
API result nvmlShutdown(void) { if (!initialized) return UNINITIALIZED; initialized--; return OK; }
API const char *nvmlErrorString(result r) {
  switch (r) { case 3: return "Not Supported"; case 4: return "Insufficient Permissions"; case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost"; default: return "Some Error"; }
}
API result nvmlSystemGetDriverVersion(char *b, unsigned n) { ENTER; return put(b, n, "999.1"); }
API result nvmlDeviceGetCount_v2(unsigned *n) { ENTER; *n = (unsigned)gpu_count; return OK; }
API result nvmlDeviceGetHandleByIndex_v2(unsigned k, device *d) {
  if (!initialized) return UNINITIALIZED;
  if ((int)k >= gpu_count) return INVALID;
  result f = forced(__func__, (int)k); if (f) return f;
  *d = &gpus[k]; return OK;
}
static void uuid(int i, char *s) { sprintf(s, "GPU-fa4e0000-0000-0000-0000-%012x", i); }
API result nvmlDeviceGetUUID(device d, char *b, unsigned n) {
  DEVICE; char s[48]; uuid(i, s);
  if (d->instance >= 0) sprintf(s, "MIG-fa4e0000-0000-0000-%04x-%08x%04x", migs[i][d->instance].generation, i, d->instance);
  return put(b, n, s);
}
API result nvmlDeviceGetHandleByUUID(const char *u, device *d) {
  ENTER; char s[48];
  for (int k = 0; k < gpu_count; k++) {
    uuid(k, s);
    if (!strcmp(s, u)) { result f = forced(__func__, k); if (f) return f; *d = &gpus[k]; return OK; }
  }
  return NOT_FOUND;
}
API result nvmlDeviceGetName(device d, char *b, unsigned n) {
  DEVICE; return put(b, n, d->instance < 0 ? "NVIDIA Fake 80GB HBM3" : "NVIDIA Fake 80GB HBM3 MIG");
}
typedef struct { char legacy[16]; unsigned domain, bus, dev, id, sub; char bus_id[32]; } pci_t;
API result nvmlDeviceGetPciInfo_v3(device d, pci_t *p) {
  DEVICE; memset(p, 0, sizeof *p); sprintf(p->bus_id, "00000000:%02X:00.0", 16 + i); return OK;
}

/* ---- static figures ---- */
#define FIGURE(name, value) API result name(device d, unsigned *v) { DEVICE; *v = (value); return OK; }
FIGURE(nvmlDeviceGetNumGpuCores, 16896)
FIGURE(nvmlDeviceGetMemoryBusWidth, 5120)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, 700000)
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, 700000)
FIGURE(nvmlDeviceGetMaxPcieLinkGeneration, 5)
FIGURE(nvmlDeviceGetMaxPcieLinkWidth, 16)
FIGURE(nvmlDeviceGetCurrPcieLinkGeneration, 1)
FIGURE(nvmlDeviceGetCurrPcieLinkWidth, 16)
API result nvmlDeviceGetCudaComputeCapability(device d, int *a, int *b) { DEVICE; *a = 9; *b = 0; return OK; }
API result nvmlDeviceGetMaxClockInfo(device d, int t, unsigned *c) { DEVICE; *c = t == 2 ? 2619 : 1980; return OK; }
API result nvmlDeviceGetTemperatureThreshold(device d, int t, unsigned *c) { DEVICE; (void)t; *c = 92; return OK; }

/* ---- gauges and counters ---- */
API result nvmlDeviceGetMemoryInfo(device d, u64 *m) {
  DEVICE; m[0] = (u64)80 << 30; m[2] = (u64)(level(i) * (double)((u64)40 << 30)); m[1] = m[0] - m[2]; return OK;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } memory2_t;
API result nvmlDeviceGetMemoryInfo_v2(device d, memory2_t *m) {
  DEVICE;
  if (d->instance >= 0) {
    m->total = (u64)10 * (u64)migs[i][d->instance].slices << 30; m->reserved = 0;
    m->used = (u64)(part(d) * level(i) * (double)m->total); m->free = m->total - m->used; return OK;
  }
  m->total = (u64)80 << 30; m->reserved = 1 << 29; m->used = (u64)(level(i) * (double)((u64)40 << 30));
  m->free = m->total - m->reserved - m->used; return OK;
}
API result nvmlDeviceGetBAR1MemoryInfo(device d, u64 *m) { DEVICE; m[0] = (u64)128 << 30; m[2] = 2 << 20; m[1] = m[0] - m[2]; return OK; }
API result nvmlDeviceGetUtilizationRates(device d, unsigned *u) { DEVICE; if (d->instance >= 0) return NOT_SUPPORTED; u[0] = (unsigned)(100 * level(i)); u[1] = u[0] / 2; return OK; }
API result nvmlDeviceGetEncoderUtilization(device d, unsigned *u, unsigned *p) { DEVICE; *u = 7; *p = 100000; return OK; }
API result nvmlDeviceGetDecoderUtilization(device d, unsigned *u, unsigned *p) { DEVICE; *u = 3; *p = 100000; return OK; }
API result nvmlDeviceGetTemperature(device d, int s, unsigned *c) { DEVICE; (void)s; *c = 40 + (unsigned)(50 * level(i)); return OK; }
API result nvmlDeviceGetClockInfo(device d, int t, unsigned *c) { DEVICE; *c = t == 2 ? 2619 : (unsigned)(1980 * level(i)); return OK; }
API result nvmlDeviceGetCurrentClocksThrottleReasons(device d, u64 *r) { DEVICE; *r = 0x4 | 0x20; return OK; }
static double watts(int i) { return 100 + 600 * level(i); }
API result nvmlDeviceGetPowerUsage(device d, unsigned *p) { DEVICE; *p = (unsigned)(1000 * watts(i)); return OK; }
static u64 millijoules(int i) { return (u64)(1e3 * (100 * now() + 600 * fake_integral(i, now()))); }
API result nvmlDeviceGetTotalEnergyConsumption(device d, u64 *e) { DEVICE; *e = millijoules(i); return OK; }
API result nvmlDeviceGetPcieReplayCounter(device d, unsigned *c) { DEVICE; *c = 5; return OK; }
typedef struct { unsigned field, scope; long long timestamp, latency; int type; result ret; union { double f64; unsigned u32; u64 u; } value; } field_t;
API result nvmlDeviceGetFieldValues(device d, int n, field_t *v) {
  DEVICE;
  for (int k = 0; k < n; k++) {
    v[k].timestamp = (long long)(1e6 * now());
    v[k].ret = forced_number("field", v[k].field, i);
    if (v[k].ret) continue;
    switch (v[k].field) {
      case 186: v[k].type = 1; v[k].value.u32 = (unsigned)(1000 * watts(i)); break;
      case 83: v[k].type = 3; v[k].value.u = millijoules(i); break;
      case 82: v[k].type = 1; v[k].value.u32 = 61; break;
      case 197: v[k].type = 1; v[k].value.u32 = (unsigned)(u64)(1e9 * fake_integral(i, now())); break;
      case 198: v[k].type = 3; v[k].value.u = (u64)(2e9 * fake_integral(i, now())); break;
      case 94: v[k].type = 1; v[k].value.u32 = 4; break;
      default: v[k].ret = NOT_SUPPORTED;
    }
  }
  return OK;
}

/* ---- GPM: samples hold integrals, so a value is the true average between two ---- */
typedef struct { int gpu, instance; double t, integral; } sample_t;
typedef struct { unsigned id; result ret; double value; const char *a, *b, *c; } metric_t;
typedef struct { unsigned version, count; sample_t *older, *newer; metric_t metrics[]; } request_t;
API result nvmlGpmQueryDeviceSupport(device d, unsigned *s) { DEVICE; if (s[0] != 1) return VERSION_MISMATCH; s[1] = (unsigned)with_gpm; return OK; }
API result nvmlGpmSampleAlloc(sample_t **s) { ENTER; *s = calloc(1, sizeof **s); live_samples++; return OK; }
API result nvmlGpmSampleFree(sample_t *s) { ENTER; free(s); live_samples--; return OK; }
API result nvmlGpmSampleGet(device d, sample_t *s) {
  DEVICE; if (!with_gpm) return NOT_SUPPORTED;
  s->gpu = i; s->instance = -1; s->t = now(); s->integral = fake_integral(i, s->t); return OK;
}
API result nvmlGpmMigSampleGet(device d, unsigned gpu_instance, sample_t *s) {
  DEVICE; if (!with_gpm) return NOT_SUPPORTED;
  for (int k = 0; k < MAX_MIG; k++) {
    if (!migs[i][k].slices || migs[i][k].gpu_instance != (int)gpu_instance) continue;
    s->gpu = i; s->instance = k; s->t = now(); s->integral = part(&instances[i][k]) * fake_integral(i, s->t); return OK;
  }
  return NOT_FOUND;
}
API result nvmlGpmMetricsGet(request_t *r) {
  ENTER;
  if (r->version != 1) return VERSION_MISMATCH;
  if (!r->older || !r->newer || r->older->gpu != r->newer->gpu || r->older->instance != r->newer->instance || r->newer->t <= r->older->t) return INVALID;
  double mean = (r->newer->integral - r->older->integral) / (r->newer->t - r->older->t);
  for (unsigned k = 0; k < r->count; k++) {
    metric_t *m = &r->metrics[k];
    m->ret = forced_number("gpm", m->id, r->older->gpu);
    if (m->ret) continue;
    if (r->older->instance >= 0 && m->id >= 20) { m->ret = NOT_SUPPORTED; continue; }
    if (zeros) { m->value = 0; continue; }
    switch (m->id) {
      case 1: m->value = 100 * mean; break;           /* graphics */
      case 2: m->value = 90 * mean * (r->older->instance >= 0 ? excess : 1); break;            /* sm */
      case 3: m->value = 50 * mean; break;            /* occupancy */
      case 5: m->value = 40 * mean; break;            /* tensor */
      case 10: m->value = 60 * mean; break;           /* dram */
      case 11: m->value = 0; break;                   /* fp64 */
      case 12: m->value = 30 * mean; break;           /* fp32 */
      case 13: m->value = 0.0 / 0.0; break;           /* fp16: not a number, status OK */
      case 20: m->value = 1000 * mean; break;         /* pcie tx, MiB/s */
      case 21: m->value = 2000 * mean; break;         /* pcie rx, MiB/s */
      default: m->ret = NOT_SUPPORTED;                /* no NVLink on this board */
    }
  }
  return OK;
}

/* ---- MIG and processes ---- */
API result nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *later) {
  DEVICE; if (!mig_mode[i]) return NOT_SUPPORTED; *now = *later = 1; return OK;
}
API result nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *n) { DEVICE; *n = mig_mode[i] ? MAX_MIG : 0; return OK; }
API result nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned k, device *m) {
  DEVICE; if (k >= MAX_MIG) return INVALID; if (!migs[i][k].slices) return NOT_FOUND; *m = &instances[i][k]; return OK;
}
API result nvmlDeviceGetGpuInstanceId(device d, unsigned *id) {
  DEVICE; if (d->instance < 0) return INVALID; *id = (unsigned)migs[i][d->instance].gpu_instance; return OK;
}
API result nvmlDeviceGetComputeInstanceId(device d, unsigned *id) {
  DEVICE; if (d->instance < 0) return INVALID; *id = (unsigned)migs[i][d->instance].compute_instance; return OK;
}
typedef struct { unsigned sms, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; u64 memory_mb; } attributes_t;
API result nvmlDeviceGetAttributes_v2(device d, attributes_t *a) {
  DEVICE; if (d->instance < 0) return NOT_SUPPORTED;
  int slices = migs[i][d->instance].slices;
  memset(a, 0, sizeof *a); a->sms = (unsigned)(16 * slices); a->gi_slices = a->ci_slices = (unsigned)slices;
  a->memory_mb = (u64)10240 * (u64)slices; return OK;
}
typedef struct { unsigned pid; u64 used; unsigned gi, ci; } process_t;
API result nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, process_t *p) {
  DEVICE;
  unsigned found = 0, room = *n;
  for (int k = 0; k < process_count; k++) {
    if (processes[k].gpu != i || (d->instance >= 0 && processes[k].instance != d->instance)) continue;
    if (p && found < room) { p[found].pid = processes[k].pid; p[found].used = 1 << 30; p[found].gi = p[found].ci = 0xFFFFFFFF; }
    found++;
  }
  *n = found;
  return found > room ? TOO_SMALL : OK;
}

/* ---- events ---- */
typedef struct { device d; u64 type, data; unsigned gi, ci; } event_t;
/* A set knows its GPUs: one of them that is lost makes every wait fail. */
API result nvmlEventSetCreate(void **s) { ENTER; *s = calloc(MAX_GPUS, 1); live_event_sets++; return OK; }
API result nvmlEventSetFree(void *s) { ENTER; free(s); live_event_sets--; return OK; }
API result nvmlDeviceRegisterEvents(device d, u64 types, void *s) { DEVICE; (void)types; ((char *)s)[i] = 1; return OK; }
API result nvmlEventSetWait_v2(void *s, event_t *e, unsigned ms) {
  ENTER; (void)ms;
  if (!xid_count) return TIMEOUT;
  for (int k = 0; k < MAX_GPUS; k++)
    if (((char *)s)[k] && k != xids[0].gpu) { result f = forced("event", k); if (f) return f; }
  if (!((char *)s)[xids[0].gpu]) return TIMEOUT;
  memset(e, 0, sizeof *e); e->gi = e->ci = xids[0].gi; e->d = &gpus[xids[0].gpu]; e->type = 8; e->data = xids[0].code;
  memmove(&xids[0], &xids[1], sizeof xids[0] * (size_t)--xid_count);
  return OK;
}
