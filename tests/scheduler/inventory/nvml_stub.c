/* A test double of the driver's library: enough for discovery, driven through the environment.
   STUB_GPUS: how many. STUB_MIG=1: GPU 0 is split. STUB_NO_PLACEMENT=1: only an administrator may ask where instances lie.
   STUB_PAIRS=1: NVLink joins neighbours only. STUB_OLD=1: the driver does not know how wide the bus to memory is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *dev;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned start, size; } placement;
typedef struct { dev device; unsigned id, profile; placement place; } instance;

static int set(const char *name) { char *value = getenv(name); return value && atoi(value); }
static unsigned count(void) { char *value = getenv("STUB_GPUS"); return value ? (unsigned)atoi(value) : 2; }
static long number(dev device) { return (long)device - 1; }
static int is_part(dev device) { return number(device) >= 100; }

int nvmlInitWithFlags(unsigned flags) { return getenv("STUB_BROKEN") ? 999 : 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code ? "Unknown Error" : "Success"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, dev *device) { *device = (dev)(long)(index + 1); return index < count() ? 0 : 2; }
int nvmlDeviceGetName(dev device, char *text, unsigned size) {
  snprintf(text, size, is_part(device) ? (number(device) == 100 ? "NVIDIA H100 80GB HBM3 MIG 4g.40gb" : "NVIDIA H100 80GB HBM3 MIG 3g.40gb") : "NVIDIA H100 80GB HBM3");
  return 0;
}
int nvmlDeviceGetUUID(dev device, char *text, unsigned size) { snprintf(text, size, is_part(device) ? "MIG-stub-%ld" : "GPU-stub-%ld", number(device)); return 0; }
int nvmlDeviceGetMemoryInfo(dev device, memory *info) { info->total = 81559ull << 20; info->free = info->total; info->used = 0; return 0; }
int nvmlDeviceGetPciInfo_v3(dev device, pci *info) { memset(info, 0, sizeof *info); snprintf(info->bus_id, 32, "00000000:FF:1E.7"); return 0; }
int nvmlDeviceGetNumaNodeId(dev device, int *node) { *node = (int)(number(device) / 2); return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(dev device, unsigned *generation) { *generation = 5; return 0; }
int nvmlDeviceGetMaxPcieLinkWidth(dev device, unsigned *width) { *width = 16; return 0; }
int nvmlDeviceGetMemoryBusWidth(dev device, unsigned *bits) { *bits = 5120; return set("STUB_OLD") ? 3 : 0; }
int nvmlDeviceGetMaxClockInfo(dev device, int kind, unsigned *mhz) { *mhz = kind == 2 ? 2619 : 1980; return 0; }
int nvmlDeviceGetMigMode(dev device, unsigned *now, unsigned *next) { *now = *next = set("STUB_MIG") && number(device) == 0; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(dev device, unsigned *most) { *most = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev device, unsigned index, dev *part) { *part = (dev)(long)(101 + index); return index < 2 ? 0 : 6; }
int nvmlDeviceGetGpuInstanceId(dev part, unsigned *id) { *id = (unsigned)(number(part) - 100); return 0; }
int nvmlDeviceGetGpuInstanceById(dev device, unsigned id, dev *found) { *found = (dev)(long)(id + 1); return set("STUB_NO_PLACEMENT") ? 4 : 0; }
int nvmlGpuInstanceGetInfo(dev found, instance *info) {
  long id = (long)found - 1;
  info->id = (unsigned)id; info->profile = id ? 9 : 5; info->place.start = id ? 4 : 0; info->place.size = 4;
  return 0;
}
int nvmlDeviceGetP2PStatus(dev left, dev right, int index, int *status) {
  *status = !set("STUB_PAIRS") || number(left) / 2 == number(right) / 2 ? 0 : 5;
  return 0;
}
