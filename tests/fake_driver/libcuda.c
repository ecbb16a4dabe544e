/* A CUDA driver for machines without one: GPUs that can be counted and described, and have contexts, as the
 * environment says.
 *
 * FAKE_GPUS            how many there are
 * FAKE_GPU_NAME        their product name
 * FAKE_GPU_BYTES       the memory of each
 * FAKE_GPU_CAPABILITY  such as 9.0
 * FAKE_MIG_SLICES      into how many slices each is divided; none for 0
 * FAKE_GPU_FAULT       the error of making a context; 0 for none
 * CUDA_VISIBLE_DEVICES as for the real one: numbers, GPU-... and MIG-..., up to the first that is none; of slices
 *                      a process has the first alone
 *
 * GPU 3 is GPU-00000000-0000-0000-0000-000000000003, its slice 1 is MIG-4d000000-0000-0000-0000-000000000301.
 * A process with CUDA_MPS_PIPE_DIRECTORY whose daemon listens there leaves the file "server" in it, once it has a
 * context.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };
enum { MOST = 64, DEEPEST = 64 };

typedef struct { int gpu, slice; } Device;

static Device devices[MOST];
static int count = -1;
/* CUDA's current context belongs to a thread. */
static __thread void *stack[DEEPEST];
static __thread int depth;

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value && *value ? atol(value) : otherwise;
}

static void uuid_of(Device device, unsigned char bytes[16]) {
    memset(bytes, 0, 16);
    if (device.slice >= 0) {
        bytes[0] = 0x4d;
        bytes[14] = device.gpu;
        bytes[15] = device.slice;
    } else {
        bytes[15] = device.gpu;
    }
}

static void text_of(Device device, char text[64]) {
    unsigned char b[16];
    uuid_of(device, b);
    snprintf(text, 64, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             device.slice >= 0 ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10],
             b[11], b[12], b[13], b[14], b[15]);
}

/* What an entry of CUDA_VISIBLE_DEVICES names; 0 if it names nothing. */
static int find(const char *entry, Device *found) {
    int gpus = number("FAKE_GPUS", 0), slices = number("FAKE_MIG_SLICES", 0);
    char *end, text[64];
    long index = strtol(entry, &end, 10);
    if (*entry && !*end) {
        *found = (Device){index, slices ? 0 : -1};
        return index >= 0 && index < gpus;
    }
    if (strlen(entry) <= 4) return 0;
    for (int gpu = 0; gpu < gpus; gpu++)
        for (int slice = -1; slice < slices; slice++) {
            *found = (Device){gpu, slice};
            text_of(*found, text);
            if (strncasecmp(entry, text, strlen(entry)) == 0) return slices == 0 || slice >= 0;
        }
    return 0;
}

int cuInit(unsigned int flags) {
    char entries[4096], *rest = entries, *entry;
    if (flags != 0) return INVALID_VALUE;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    count = 0;
    if (visible) {
        snprintf(entries, sizeof entries, "%s", visible);
    } else {
        entries[0] = 0;
        for (int gpu = 0; gpu < number("FAKE_GPUS", 0); gpu++)
            snprintf(entries + strlen(entries), sizeof entries - strlen(entries), gpu ? ",%d" : "%d", gpu);
    }
    while ((entry = strsep(&rest, ",")) && count < MOST) {
        entry += strspn(entry, " ");
        entry[strcspn(entry, " ")] = 0;
        if (!find(entry, &devices[count])) break;
        count++;
        if (devices[count - 1].slice >= 0) break;
    }
    return count > 0 ? OK : NO_DEVICE;
}

#define KNOWN(device) \
    if (count < 0) return NOT_INITIALIZED; \
    if ((device) < 0 || (device) >= count) return INVALID_DEVICE

int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *found) { if (count < 0) return NOT_INITIALIZED; *found = count; return OK; }
int cuDeviceGet(int *device, int ordinal) { KNOWN(ordinal); *device = ordinal; return OK; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) { KNOWN(device); uuid_of(devices[device], uuid); return OK; }

int cuDeviceGetName(char *name, int size, int device) {
    KNOWN(device);
    const char *product = getenv("FAKE_GPU_NAME");
    snprintf(name, size, "%s%s", product ? product : "NVIDIA H100 80GB HBM3", devices[device].slice < 0 ? "" : " MIG 1g.10gb");
    return OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    KNOWN(device);
    long slices = number("FAKE_MIG_SLICES", 0);
    *bytes = number("FAKE_GPU_BYTES", 85520809984) / (slices ? slices : 1);
    return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    KNOWN(device);
    const char *capability = getenv("FAKE_GPU_CAPABILITY");
    int major = 9, minor = 0;
    if (capability) sscanf(capability, "%d.%d", &major, &minor);
    if (attribute == 75) *value = major;
    else if (attribute == 76) *value = minor;
    else return INVALID_VALUE;
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    KNOWN(device);
    char path[4096];
    const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    FILE *file;
    if (number("FAKE_GPU_FAULT", 0)) return number("FAKE_GPU_FAULT", 0);
    if (pipes) {
        snprintf(path, sizeof path, "%s/control", pipes);
        if ((file = fopen(path, "r"))) {
            fclose(file);
            snprintf(path, sizeof path, "%s/server", pipes);
            if ((file = fopen(path, "w"))) fclose(file);
        }
    }
    *context = &devices[device];
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) { KNOWN(device); return OK; }

int cuCtxPushCurrent_v2(void *context) {
    if (depth == DEEPEST) return INVALID_VALUE;
    stack[depth++] = context;
    return OK;
}

int cuCtxPopCurrent_v2(void **context) {
    if (depth == 0) return INVALID_CONTEXT;
    *context = stack[--depth];
    return OK;
}

int cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return OK; }

int cuGetErrorString(int error, const char **text) {
    *text = error == NO_DEVICE ? "no CUDA-capable device is detected" : "the fake driver refuses this call";
    return OK;
}
