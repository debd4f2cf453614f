/* A fake libnvidia-ml.so.1 for whole programs: N GPUs whose readings move by the clock. Built and described by shim.py.
 *
 * Structs are laid out as in nvml.h. Every function begins with ENTER, which does what the environment asks for: delay,
 * hang, a lost GPU. Symbols that are not written here are stubs in stubs.h that answer NOT_SUPPORTED. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15, VERSION_MISMATCH = 25 };
enum { MAX_GPUS = 64, MAX_OWNERS = 1024 };

typedef unsigned long long u64;
typedef struct { int index; } device;
typedef struct { int gpu; double seconds; } sample;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_row;
typedef struct { unsigned id; int result; double value; const char *names[3]; } metric;
typedef struct { unsigned version, count; sample *one, *two; metric metrics[]; } metrics_request;

static device devices[MAX_GPUS];
static struct { unsigned pid; int gpu; } owners[MAX_OWNERS];
static int gpu_count = 8, owner_count, lost_gpu = -1, init_error;
static unsigned char idle[MAX_GPUS];
static long delay_ms, as_measured;
static const char *hang_call = "";
static const u64 TOTAL = 150754820096ull, RESERVED = 700000000ull;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? strtol(value, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void configure(void) {
    gpu_count = (int)setting("GPUSCOPE_FAKE_GPUS", 8);
    if (gpu_count < 0 || gpu_count > MAX_GPUS) gpu_count = MAX_GPUS;
    for (int i = 0; i < MAX_GPUS; i++) devices[i].index = i;
    delay_ms = setting("GPUSCOPE_FAKE_DELAY_MS", 0);
    as_measured = setting("GPUSCOPE_FAKE_AS_MEASURED", 0);
    lost_gpu = (int)setting("GPUSCOPE_FAKE_LOST", -1);
    init_error = (int)setting("GPUSCOPE_FAKE_INIT_ERROR", 0);
    if (getenv("GPUSCOPE_FAKE_HANG")) hang_call = getenv("GPUSCOPE_FAKE_HANG");
    for (const char *at = getenv("GPUSCOPE_FAKE_IDLE"); at && *at;) {
        char *end;
        long index = strtol(at, &end, 10);
        if (end != at && index >= 0 && index < MAX_GPUS) idle[index] = 1;
        at = *end == ',' ? end + 1 : "";
    }
    for (const char *at = getenv("GPUSCOPE_FAKE_PID"); at && *at && owner_count < MAX_OWNERS;) {
        char *end;
        owners[owner_count].pid = (unsigned)strtoul(at, &end, 10);
        owners[owner_count].gpu = *end == ':' ? (int)strtol(end + 1, &end, 10) : 0;
        owner_count++;
        at = *end == ',' ? end + 1 : "";
    }
}

/* Microseconds that calls took on 8 H200s under driver 580 (medians; of what is asked once the first call). */
static const struct { const char *call; unsigned us; } measured[] = {
    {"nvmlInitWithFlags", 128000}, {"nvmlDeviceGetHandleByIndex_v2", 1000}, {"nvmlDeviceGetMaxClockInfo", 3958},
    {"nvmlDeviceGetMaxPcieLinkGeneration", 2156}, {"nvmlDeviceGetMaxPcieLinkWidth", 112},
    {"nvmlDeviceGetUtilizationRates", 3563}, {"nvmlDeviceGetPowerUsage", 1971}, {"nvmlDeviceGetTemperatureV", 491},
    {"nvmlDeviceGetClockInfo", 596}, {"nvmlDeviceGetCurrentClocksEventReasons", 375},
    {"nvmlDeviceGetComputeRunningProcesses_v3", 476}, {"nvmlDeviceGetGraphicsRunningProcesses_v3", 1321},
    {"nvmlDeviceGetCurrPcieLinkGeneration", 1166}, {"nvmlGpmSampleGet", 241}, {"nvmlDeviceGetRemappedRows", 2019},
    {"nvmlDeviceGetPowerManagementDefaultLimit", 1293}, {"nvmlDeviceGetRetiredPagesPendingStatus", 443},
    {"nvmlDeviceGetP2PStatus", 1852}, {"nvmlDeviceGetTopologyCommonAncestor", 2000},
    {"nvmlDeviceGetGpuFabricInfoV", 394}, {"nvmlDeviceGetNvLinkState", 10},
    {"nvmlDeviceGetProcessUtilization", 2092}, {"nvmlDeviceGetTotalEnergyConsumption", 2931},
    {"nvmlDeviceGetFieldValues", 3324}, {"nvmlDeviceGetSamples", 2053}, {"nvmlDeviceGetPcieReplayCounter", 163},
};

static void enter(const char *call) {
    if (delay_ms > 0) usleep((useconds_t)delay_ms * 1000);
    if (as_measured)
        for (unsigned i = 0; i < sizeof measured / sizeof *measured; i++)
            if (strcmp(call, measured[i].call) == 0) usleep((useconds_t)measured[i].us);
    if (strcmp(call, hang_call) == 0) for (;;) pause();
}
#define ENTER enter(__func__)
#define ALIVE(d) do { ENTER; if ((d)->index == lost_gpu) return LOST; } while (0)

/* A reading that moves between low and high: slowly, differently on each GPU, in steps of 0.2 s as a driver's cache does. */
static double wave(const device *d, double period, double low, double high) {
    double t = floor(now() * 5.0) / 5.0;
    return low + (high - low) * (0.5 + 0.5 * sin(6.283185307 * (t / period + 0.137 * d->index)));
}
static unsigned load(const device *d) { return idle[d->index] ? 0 : (unsigned)wave(d, 17.0, 40.0, 100.0); }
static int owners_of(const device *d) {
    int found = 0;
    for (int i = 0; i < owner_count; i++) found += owners[i].gpu == d->index;
    return found;
}
static u64 used(const device *d) {
    if (idle[d->index] && !owners_of(d)) return 4000000ull;
    return (u64)wave(d, 60.0, 60e9, 90e9) >> 21 << 21;
}

static int text(char *out, unsigned size, const char *value) {
    if (strlen(value) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

/* library */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER;
    if (setting("GPUSCOPE_FAKE_CHATTY", 0)) {
        printf("driver: kept until the end\n");
        if (write(1, "driver: at once\n", 16) != 16) abort();
    }
    return init_error;
}
int nvmlInit_v2(void) { ENTER; return init_error; }
int nvmlInit(void) { ENTER; return init_error; }
int nvmlShutdown(void) { ENTER; return SUCCESS; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER; return text(out, size, "580.159.03"); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { ENTER; return text(out, size, "13.580.159.03"); }
int nvmlSystemGetCudaDriverVersion(int *out) { ENTER; *out = 13000; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER; *out = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { ENTER; *out = (unsigned)gpu_count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    ENTER;
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    *out = &devices[index];
    return SUCCESS;
}

/* identity: answered from the driver's memory, also when the GPU is lost */
static void uuid_of(const device *d, char *out) { sprintf(out, "GPU-%08x-0000-4000-8000-000000000000", d->index + 1); }
int nvmlDeviceGetHandleByUUID(const char *uuid, device **out) {
    char own[80];
    ENTER;
    for (int i = 0; i < gpu_count; i++) {
        uuid_of(&devices[i], own);
        if (strcmp(own, uuid) == 0) { *out = &devices[i]; return SUCCESS; }
    }
    return NOT_FOUND;
}
int nvmlDeviceGetIndex(device *d, unsigned *out) { ENTER; *out = (unsigned)d->index; return SUCCESS; }
int nvmlDeviceGetName(device *d, char *out, unsigned size) { (void)d; ENTER; return text(out, size, "NVIDIA H200"); }
int nvmlDeviceGetUUID(device *d, char *out, unsigned size) {
    char own[80];
    ENTER;
    uuid_of(d, own);
    return text(out, size, own);
}
int nvmlDeviceGetPciInfo_v3(device *d, void *out) {
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } info = {0};
    ENTER;
    info.bus = 0x18u + (unsigned)d->index;
    info.id = 0x233510deu;
    snprintf(info.legacy, sizeof info.legacy, "0000:%02X:00.0", info.bus);
    snprintf(info.bus_id, sizeof info.bus_id, "00000000:%02X:00.0", info.bus);
    memcpy(out, &info, sizeof info);
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) { ALIVE(d); *major = 9; *minor = 0; return SUCCESS; }
int nvmlDeviceGetMaxClockInfo(device *d, unsigned kind, unsigned *out) { ALIVE(d); *out = kind == 2 ? 3201 : 1980; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned *out) { ALIVE(d); *out = 5; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned *out) { ALIVE(d); *out = 16; return SUCCESS; }
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) { ALIVE(d); *current = *pending = 0; return SUCCESS; }

int nvmlDeviceGetArchitecture(device *d, unsigned *out) { ALIVE(d); *out = 9; return SUCCESS; }
int nvmlDeviceGetMemoryBusWidth(device *d, unsigned *out) { ALIVE(d); *out = 6144; return SUCCESS; }
int nvmlDeviceGetMinorNumber(device *d, unsigned *out) { ALIVE(d); *out = (unsigned)d->index; return SUCCESS; }
int nvmlDeviceGetEccMode(device *d, unsigned *now_on, unsigned *pending) { ALIVE(d); *now_on = *pending = 1; return SUCCESS; }
int nvmlDeviceGetPersistenceMode(device *d, unsigned *out) { ALIVE(d); *out = 1; return SUCCESS; }
int nvmlDeviceGetComputeMode(device *d, unsigned *out) { ALIVE(d); *out = 0; return SUCCESS; }
int nvmlDeviceGetPowerManagementDefaultLimit(device *d, unsigned *out) { ALIVE(d); *out = 700000; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimitConstraints(device *d, unsigned *low, unsigned *high) {
    ALIVE(d);
    *low = 200000;
    *high = 700000;
    return SUCCESS;
}

/* readings */
int nvmlDeviceGetMemoryInfo(device *d, u64 *out) {
    ALIVE(d);
    out[0] = TOTAL;
    out[2] = used(d) + RESERVED;
    out[1] = TOTAL - out[2];
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, void *out) {
    struct { unsigned version; u64 total, reserved, free, used; } *info = out;
    ALIVE(d);
    if (info->version != 0x02000028u) return VERSION_MISMATCH;
    info->total = TOTAL;
    info->reserved = RESERVED;
    info->used = used(d);
    info->free = TOTAL - RESERVED - info->used;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *out) { ALIVE(d); out[0] = load(d); out[1] = load(d) / 3; return SUCCESS; }
int nvmlDeviceGetPowerUsage(device *d, unsigned *out) { ALIVE(d); *out = 90000 + load(d) * 5900; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *out) { ALIVE(d); *out = 700000; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimit(device *d, unsigned *out) { ALIVE(d); *out = 700000; return SUCCESS; }
int nvmlDeviceGetTemperature(device *d, unsigned sensor, unsigned *out) {
    (void)sensor;
    ALIVE(d);
    *out = (unsigned)wave(d, 90.0, 45.0, 74.0);
    return SUCCESS;
}
int nvmlDeviceGetTemperatureV(device *d, void *out) {
    struct { unsigned version, sensor; int value; } *info = out;
    ALIVE(d);
    if (info->version != 0x0100000cu) return VERSION_MISMATCH;
    info->value = (int)wave(d, 90.0, 45.0, 74.0);
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(device *d, unsigned kind, unsigned *out) {
    ALIVE(d);
    *out = kind == 2 ? 3201 : load(d) > 90 ? 1740 : 1980;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device *d, u64 *out) { ALIVE(d); *out = load(d) > 90 ? 4 : 0; return SUCCESS; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, u64 *out) { ALIVE(d); *out = load(d) > 90 ? 4 : 0; return SUCCESS; }
int nvmlDeviceGetPerformanceState(device *d, unsigned *out) { ALIVE(d); *out = 0; return SUCCESS; }
int nvmlDeviceGetTotalEccErrors(device *d, unsigned type, unsigned counter, u64 *out) {
    (void)type, (void)counter;
    ALIVE(d);
    *out = 0;
    return SUCCESS;
}
int nvmlDeviceGetCurrPcieLinkGeneration(device *d, unsigned *out) { ALIVE(d); *out = 5; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(device *d, unsigned *out) { ALIVE(d); *out = 16; return SUCCESS; }

int nvmlDeviceGetTotalEnergyConsumption(device *d, u64 *out) { ALIVE(d); *out = (u64)(now() * 4e5); return SUCCESS; }
int nvmlDeviceGetPcieReplayCounter(device *d, unsigned *out) { ALIVE(d); *out = 0; return SUCCESS; }
int nvmlDeviceGetRemappedRows(device *d, unsigned *one, unsigned *two, unsigned *pending, unsigned *failed) {
    ALIVE(d);
    *one = *two = *pending = *failed = 0;
    return SUCCESS;
}
int nvmlDeviceGetMarginTemperature(device *d, void *out) {
    struct { unsigned version; int margin; } *info = out;
    ALIVE(d);
    if (info->version != 0x01000008u) return VERSION_MISMATCH;
    info->margin = 87 - (int)wave(d, 90.0, 45.0, 74.0);
    return SUCCESS;
}
/* the temperature of the memory only */
int nvmlDeviceGetFieldValues(device *d, int count, void *out) {
    struct { unsigned field, scope; long long time, latency; unsigned kind, answer, value, rest; } *values = out;
    ALIVE(d);
    for (int i = 0; i < count; i++) {
        values[i].answer = values[i].field == 82 ? SUCCESS : NOT_SUPPORTED;
        values[i].kind = 1;
        values[i].value = (unsigned)wave(d, 90.0, 45.0, 74.0) + 5;
    }
    return SUCCESS;
}

/* topology: two sockets, NVLink through switches */
int nvmlDeviceGetTopologyCommonAncestor(device *d, device *other, unsigned *out) {
    ALIVE(d);
    *out = d == other ? 0 : (d->index < gpu_count / 2) == (other->index < gpu_count / 2) ? 40 : 50;
    return SUCCESS;
}
int nvmlDeviceGetP2PStatus(device *d, device *other, unsigned way, unsigned *out) {
    (void)other, (void)way;
    ALIVE(d);
    *out = 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *out) {
    ALIVE(d);
    if (link >= 18) return INVALID_ARGUMENT;
    *out = 1;
    return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(device *d, void *out) {
    struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } *info = out;
    ALIVE(d);
    if (info->version != 0x02000024u) return VERSION_MISMATCH;
    info->status = 0;
    info->state = 3;
    return SUCCESS;
}

/* processes */
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process_row *rows) {
    unsigned found = 0, room = *count;
    ALIVE(d);
    for (int i = 0; i < owner_count; i++) {
        if (owners[i].gpu != d->index) continue;
        if (rows && found < room) rows[found] = (process_row){owners[i].pid, (used(d) - 100000000ull) / (unsigned)owners_of(d), ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *count, process_row *rows) {
    (void)rows;
    ALIVE(d);
    *count = 0;
    return SUCCESS;
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, unsigned *count, process_row *rows) {
    (void)rows;
    ALIVE(d);
    *count = 0;
    return SUCCESS;
}

/* The processes of a device share its load; one that is alone on a device without load ran no kernel. */
int nvmlDeviceGetProcessUtilization(device *d, void *out, unsigned *count, u64 since) {
    struct { unsigned pid; u64 microseconds; unsigned sm, memory, encoder, decoder; } *rows = out;
    unsigned found = 0, room = *count, wanted = load(d) ? (unsigned)owners_of(d) : 0;
    struct timespec t;
    ALIVE(d);
    clock_gettime(CLOCK_REALTIME, &t);
    u64 at = (u64)t.tv_sec * 1000000ull + (u64)t.tv_nsec / 1000ull;
    *count = wanted;
    if (wanted == 0 || at <= since) return NOT_FOUND;
    if (!rows || room < wanted) return INSUFFICIENT_SIZE;
    for (int i = 0; i < owner_count; i++)
        if (owners[i].gpu == d->index) {
            memset(&rows[found], 0, sizeof rows[found]);
            rows[found].pid = owners[i].pid;
            rows[found].microseconds = at;
            rows[found++].sm = load(d) / wanted;
        }
    return SUCCESS;
}

/* The samples of utilisation of the last 20 s, five a second, and of power of the last 2 s. */
int nvmlDeviceGetSamples(device *d, unsigned kind, u64 since, unsigned *value_kind, unsigned *count, void *out) {
    struct { u64 microseconds; unsigned value, rest; } *rows = out;
    struct timespec t;
    ALIVE(d);
    if (kind > 2) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &t);
    *value_kind = 1;
    unsigned room = *count;
    *count = 100;
    if (!rows || room < 100) return rows ? INSUFFICIENT_SIZE : SUCCESS;
    for (unsigned i = 0; i < 100; i++) {
        rows[i].microseconds = (u64)t.tv_sec * 1000000ull + (u64)t.tv_nsec / 1000ull - (99 - i) * (kind ? 200000ull : 20000ull);
        rows[i].value = kind == 0 ? 90000 + load(d) * 5900 : kind == 1 ? load(d) : load(d) / 2;
    }
    return since ? NOT_FOUND : SUCCESS;
}

/* GPM */
int nvmlGpmQueryDeviceSupport(device *d, unsigned *out) { ALIVE(d); out[1] = 1; return SUCCESS; }
int nvmlGpmSampleAlloc(sample **out) { ENTER; *out = calloc(1, sizeof(sample)); return *out ? SUCCESS : 20; }
int nvmlGpmSampleFree(sample *s) { ENTER; free(s); return SUCCESS; }
int nvmlGpmSampleGet(device *d, sample *s) { ALIVE(d); s->gpu = d->index; s->seconds = now(); return SUCCESS; }
int nvmlGpmMetricsGet(metrics_request *request) {
    ENTER;
    if (request->version != 1 || request->two->seconds <= request->one->seconds) return INVALID_ARGUMENT;
    const device *d = &devices[request->two->gpu];
    if (d->index == lost_gpu) return LOST;
    for (unsigned i = 0; i < request->count; i++) {
        metric *m = &request->metrics[i];
        m->result = SUCCESS;
        switch (m->id) {
        case 2: m->value = 0.88 * load(d); break;
        case 3: m->value = 0.42 * load(d); break;
        case 5: m->value = 0.27 * load(d); break;
        case 4: m->value = 0.24 * load(d); break;
        case 10: m->value = 0.42 * load(d); break;
        case 11: m->value = 0.0; break;
        case 12: m->value = 0.03 * load(d); break;
        case 13: m->value = 0.01 * load(d); break;
        case 20: m->value = 0.1 * load(d); break;
        case 21: m->value = 0.7 * load(d); break;
        case 60: case 61: m->value = gpu_count > 1 ? 93.0 * load(d) : 0.0; break;
        default: m->result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

#include "stubs.h"
