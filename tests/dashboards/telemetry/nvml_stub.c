/* A stand-in for NVIDIA's library: enough of it to be read. STUB_GPUS: how many; STUB_GPM: 0 for GPUs without counters; STUB_LOST: the index of a GPU
   that has fallen off the bus; STUB_INIT: what nvmlInit answers; STUB_BARE: everything but name and UUID is unknown; STUB_MIG: 1 for a first
   GPU with an instance of three slices, which has two compute instances, and one of two slices; 2: it is split into none, 3: the second one is mute;
   STUB_PCIE: the generation of the link. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
typedef void *device;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version, supported; } support;
typedef struct { unsigned others[6], slices, computing; unsigned long long memory; } attributes;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, computing; } process;
typedef struct { char *a, *b, *c; } info;
typedef struct { unsigned id; int answer; double value; info names; } metric;
typedef struct { unsigned version, count; void *first, *second; metric metrics[4]; } metrics;

static int number(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }
static long index_of(device d) { return (long)d - 1; }
static int bare(void) { return number("STUB_BARE", 0) ? NOT_SUPPORTED : SUCCESS; }
static int samples = 0;
static int is_split(device d) { return number("STUB_MIG", 0) && index_of(d) == 0; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return number("STUB_INIT", SUCCESS); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return samples ? 999 : SUCCESS; }
const char *nvmlErrorString(int code) { return code ? "stub says no" : "Success"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("STUB_GPUS", 2); return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *d) {
    if ((int)index == number("STUB_LOST", -1)) return GPU_IS_LOST;
    if ((int)index >= number("STUB_GPUS", 2)) return INVALID;
    *d = (device)(long)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(device d, char *text, unsigned size) { snprintf(text, size, "GPU-stub-%ld", index_of(d)); return SUCCESS; }
int nvmlDeviceGetName(device d, char *text, unsigned size) { (void)d; snprintf(text, size, "NVIDIA H100 80GB HBM3"); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(device d, memory *m) { (void)d; m->total = 80000; m->used = 20000; m->free = 60000; return bare(); }
int nvmlDeviceGetPowerUsage(device d, unsigned *milliwatts) { *milliwatts = 400600 + (unsigned)index_of(d) * 1000; return bare(); }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *degrees) { (void)d; (void)sensor; *degrees = 61; return bare(); }
int nvmlDeviceGetUtilizationRates(device d, utilization *u) { u->gpu = 100; u->memory = 7; return is_split(d) ? NOT_SUPPORTED : bare(); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *reasons) { *reasons = index_of(d) ? 0x40 | 0x4 : 0x80; return bare(); }
int nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, process *all) {
    unsigned running = index_of(d) ? 0 : 2, room = *count;
    *count = running;
    if (bare()) return NOT_SUPPORTED;
    if (room < running) return INSUFFICIENT_SIZE;
    if (running) memset(all, 0, running * sizeof(process));
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(device d, int kind, int counter, unsigned long long *count) { (void)d; (void)counter; *count = kind ? 0 : 17; return bare(); }
int nvmlDeviceGetRemappedRows(device d, unsigned *fixed, unsigned *broken, unsigned *pending, unsigned *failed) {
    *fixed = 2; *broken = 1; *pending = 0; *failed = index_of(d) == 1;
    return bare();
}
int nvmlDeviceGetNvLinkErrorCounter(device d, unsigned link, int counter, unsigned long long *count) {
    (void)d; (void)counter; *count = 3;
    return link < 2 ? bare() : INVALID;
}
int nvmlDeviceGetClockInfo(device d, int kind, unsigned *mhz) { (void)d; *mhz = kind == 1 ? 1980 : 0; return bare(); }
int nvmlDeviceGetPcieReplayCounter(device d, unsigned *count) { (void)d; *count = 5; return bare(); }
int nvmlDeviceGetCurrPcieLinkWidth(device d, unsigned *width) { *width = index_of(d) ? 8 : 16; return bare(); }
int nvmlDeviceGetMaxPcieLinkWidth(device d, unsigned *width) { (void)d; *width = 16; return bare(); }
int nvmlDeviceGetCurrPcieLinkGeneration(device d, unsigned *generation) { (void)d; *generation = (unsigned)number("STUB_PCIE", 5); return bare(); }
int nvmlDeviceGetPcieThroughput(device d, int way, unsigned *kilobytes) { (void)d; *kilobytes = way ? 2048 : 3200000; return bare(); }
int nvmlGpmQueryDeviceSupport(device d, support *s) { (void)d; s->supported = (unsigned)number("STUB_GPM", 1); return bare(); }
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, 8); samples++; return SUCCESS; }
int nvmlGpmSampleFree(void *sample) { free(sample); samples--; return SUCCESS; }
int nvmlGpmSampleGet(device d, void *sample) { *(long *)sample = index_of(d); return is_split(d) ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceGetMigMode(device d, unsigned *current, unsigned *pending) { *current = *pending = (unsigned)is_split(d); return bare(); }
int nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *count) { (void)d; *count = 7; return bare(); }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned index, device *part) {
    (void)d;
    if (index > 2 || number("STUB_MIG", 0) == 2) return NOT_FOUND;
    *part = (device)(long)(101 + index);
    return bare();
}
int nvmlDeviceGetGpuInstanceId(device d, unsigned *id) { *id = index_of(d) < 102 ? 3 : 5; return bare(); }
int nvmlDeviceGetAttributes_v2(device d, attributes *a) { a->slices = index_of(d) < 102 ? 3 : 2; return bare(); }
int nvmlGpmMigSampleGet(device d, unsigned id, void *sample) {
    (void)d; *(long *)sample = id;
    return id == 5 && number("STUB_MIG", 0) == 3 ? NOT_SUPPORTED : SUCCESS;
}
int nvmlGpmMetricsGet(metrics *asked) {
    for (unsigned i = 0; i < asked->count; i++) {
        unsigned id = asked->metrics[i].id;
        asked->metrics[i].answer = id == 5 ? NOT_SUPPORTED : SUCCESS;
        asked->metrics[i].value = id == 2 ? 42.5 + *(long *)asked->second : id == 3 ? 31.0 : 12.5;
    }
    return SUCCESS;
}
