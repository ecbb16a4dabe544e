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
 * Memory is the host's, in files of memory: another process, and the same one, opens an allocation at an address of
 * its own, as a GPU's. "fakeOpened" counts what is open, and "fakeMostOpened" the most that was open at a time.
 *
 * A process with CUDA_MPS_PIPE_DIRECTORY whose daemon listens there leaves the file "server" in it, once it has a
 * context.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Memory: allocations of this process, and those of others that are open here. */

enum { BLOCKS = 4096 };

typedef struct { char *start; size_t bytes; int file, is_opened; unsigned long long number; } Block;
/* What a handle's 64 bytes hold. */
typedef struct { int process, file; size_t bytes; char rest[48]; } Handle;

static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;
static Block blocks[BLOCKS];
static unsigned long long numbers;
static int opened, most_opened;

static Block *block_of(unsigned long long address) {
    for (Block *block = blocks; block < blocks + BLOCKS; block++)
        if (block->start && (char *)address >= block->start && (char *)address < block->start + block->bytes) return block;
    return NULL;
}

static int map(unsigned long long *start, int file, size_t bytes, int is_opened) {
    Block *block = blocks;
    while (block < blocks + BLOCKS && block->start) block++;
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block == blocks + BLOCKS || at == MAP_FAILED) return INVALID_VALUE;
    *block = (Block){at, bytes, file, is_opened, ++numbers};
    *start = (unsigned long long)at;
    if (is_opened && ++opened > most_opened) most_opened = opened;
    return OK;
}

static int unmap(unsigned long long start, int is_opened) {
    Block *block = block_of(start);
    if (!block || block->start != (char *)start || block->is_opened != is_opened) return INVALID_VALUE;
    munmap(block->start, block->bytes);
    close(block->file);
    block->start = NULL;
    opened -= is_opened;
    return OK;
}

/* In a context, and one thread at a time. */
#define MEMORY(call) \
    if (!depth) return INVALID_CONTEXT; \
    pthread_mutex_lock(&memory); \
    int status = (call); \
    pthread_mutex_unlock(&memory); \
    return status

static int range_of(unsigned long long *start, size_t *bytes, unsigned long long address) {
    Block *block = block_of(address);
    if (!block) return INVALID_VALUE;
    *start = (unsigned long long)block->start;
    *bytes = block->bytes;
    return OK;
}

static int number_of(void *value, int attribute, unsigned long long address) {
    Block *block = block_of(address);
    if (attribute != 7 || !block) return INVALID_VALUE;
    *(unsigned long long *)value = block->number;
    return OK;
}

static int handle_of(Handle *handle, unsigned long long start) {
    Block *block = block_of(start);
    if (!block || block->is_opened) return INVALID_VALUE;
    *handle = (Handle){getpid(), block->file, block->bytes, {0}};
    return OK;
}

static int open_by(unsigned long long *start, Handle handle) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    int file = open(path, O_RDWR);
    return file < 0 ? INVALID_VALUE : map(start, file, handle.bytes, 1);
}

static int allocate(unsigned long long *start, size_t bytes) {
    int file = memfd_create("fake GPU", 0);
    if (file < 0 || ftruncate(file, bytes)) return INVALID_VALUE;
    return map(start, file, bytes, 0);
}

int cuMemAlloc_v2(unsigned long long *start, size_t bytes) { MEMORY(allocate(start, bytes)); }
int cuMemFree_v2(unsigned long long start) { MEMORY(unmap(start, 0)); }
int cuMemGetAddressRange_v2(unsigned long long *start, size_t *bytes, unsigned long long address) { MEMORY(range_of(start, bytes, address)); }
int cuPointerGetAttribute(void *value, int attribute, unsigned long long address) { MEMORY(number_of(value, attribute, address)); }
int cuIpcGetMemHandle(Handle *handle, unsigned long long start) { MEMORY(handle_of(handle, start)); }
int cuIpcOpenMemHandle_v2(unsigned long long *start, Handle handle, unsigned flags) { MEMORY(flags == 1 ? open_by(start, handle) : INVALID_VALUE); }
int cuIpcCloseMemHandle(unsigned long long start) { MEMORY(unmap(start, 1)); }
int fakeOpened(void) { return opened; }
int fakeMostOpened(void) { return most_opened; }

int cuGetErrorString(int error, const char **text) {
    *text = error == NO_DEVICE ? "no CUDA-capable device is detected" : "the fake driver refuses this call";
    return OK;
}
