/* A CUDA runtime without a device: memory is plain host memory, a launch is counted and computes nothing.
 *
 * With it the real CUDA provider of onnxruntime-gpu loads on any machine. Which provider takes which node, copies
 * between providers, the arena's size, launches, and the capture and replay of CUDA graphs are real; times and computed
 * numbers are not.
 *
 * STUB_GPU_NAME  what the device calls itself
 * STUB_GPU_MIB   memory it has; an allocation beyond it fails
 * STUB_GPU_LOST_AFTER  launches after which every call fails, as if the device had vanished
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_runtime_api.h"

#define PAGE 4096
#define MIB (1LL << 20)
#define COPIED (1 << 20) /* larger copies are counted, not made: nobody reads the numbers */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long long used_bytes, peak_bytes;
static long launches, copies_up, copies_down, copies_inside, waits, captures, replays;
static int capturing;

static long long setting(const char *name, long long otherwise) {
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

static long long capacity_bytes(void) { return setting("STUB_GPU_MIB", 81559) * MIB; }

static const char *device_name(void) {
    const char *name = getenv("STUB_GPU_NAME");
    return name ? name : "STUB not a GPU";
}

static cudaError_t alive(void) {
    long long limit = setting("STUB_GPU_LOST_AFTER", -1);
    return limit >= 0 && launches >= limit ? cudaErrorDevicesUnavailable : cudaSuccess;
}

/* Read by tests through ctypes. */
void stub_counts(long long *out) {
    long long now[] = {launches, copies_up, copies_down, copies_inside, waits, captures, replays, used_bytes, peak_bytes};
    memcpy(out, now, sizeof now);
}

void stub_reset(void) {
    launches = copies_up = copies_down = copies_inside = waits = captures = replays = 0;
    peak_bytes = used_bytes;
}

/* Called by the stubs of the libraries: one kernel of theirs. */
int stub_launch(void) {
    launches++;
    return alive();
}

static void *handle(void) { return calloc(1, 256); }

/* --- memory ------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **pointer, size_t size) {
    *pointer = NULL;
    size_t whole = (size + 2 * PAGE - 1) / PAGE * PAGE; /* a page in front remembers the size */
    pthread_mutex_lock(&lock);
    int fits = used_bytes + (long long)whole <= capacity_bytes();
    if (fits) used_bytes += whole;
    if (used_bytes > peak_bytes) peak_bytes = used_bytes;
    pthread_mutex_unlock(&lock);
    if (!fits) return cudaErrorMemoryAllocation;
    char *page = mmap(0, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED) return cudaErrorMemoryAllocation;
    *(size_t *)page = whole;
    *pointer = page + PAGE;
    return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
    if (!pointer) return cudaSuccess;
    char *page = (char *)pointer - PAGE;
    size_t whole = *(size_t *)page;
    pthread_mutex_lock(&lock);
    used_bytes -= whole;
    pthread_mutex_unlock(&lock);
    munmap(page, whole);
    return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return cudaMalloc(pointer, size);
}
cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    return posix_memalign(pointer, 256, size ? size : 256) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMallocHost(void **pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void *pointer) {
    free(pointer);
    return cudaSuccess;
}

static cudaError_t copied(enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyHostToDevice) copies_up++;
    else if (kind == cudaMemcpyDeviceToHost) copies_down++;
    else copies_inside++;
    return alive();
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    if (size <= COPIED) memmove(to, from, size);
    return copied(kind);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy(to, from, size, kind);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return copied(kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset, enum cudaMemcpyKind kind) {
    memset(to, 0, size);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t size) {
    if (size <= COPIED) memset(to, value, size);
    return alive();
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    launches++;
    return cudaMemset(to, value, size);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = capacity_bytes();
    *available = *total - used_bytes;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    out->type = cudaMemoryTypeDevice;
    out->devicePointer = (void *)pointer;
    return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props) {
    *pool = handle();
    return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    *(unsigned long long *)value = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t size) { return cudaSuccess; }

/* --- the device: an H100's limits, so that kernels find what they ask for ------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strncpy(p->name, device_name(), sizeof p->name - 1);
    p->major = 9;
    p->multiProcessorCount = 132;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->regsPerBlock = 65536;
    p->warpSize = 32;
    p->totalGlobalMem = capacity_bytes();
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    default: *value = 1;
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    waits++;
    return alive();
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }
const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorStub";
}
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "the stub device is lost";
}
cudaError_t cudaGetLastError(void) { return alive(); }
cudaError_t cudaPeekAtLastError(void) { return alive(); }

/* --- streams, events, graphs --------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = handle();
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaDeviceSynchronize(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    function(data);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = handle();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = 0.01f;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    capturing = 1;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    capturing = 0;
    captures++;
    *graph = handle();
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    *out = handle();
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    replays++;
    return alive();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaSuccess; }

/* --- kernels ------------------------------------------------------------------------------------------- */

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    return stub_launch();
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                               cudaStream_t stream) {
    return stub_launch();
}
cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                        cudaStream_t stream) {
    return stub_launch();
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args) {
    return stub_launch();
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel) {
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->binaryVersion = out->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device) {
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size,
                                                                   size_t shared, unsigned flags) {
    *blocks = 1;
    return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned count, enum cudaLibraryOption *library_options, void **library_values,
                                unsigned library_count) {
    *library = handle();
    return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    *kernel = handle();
    return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    *function = (void *)cudaDeviceSynchronize; /* asked for at load, never called */
    if (result) *result = 0;
    return cudaSuccess;
}

/* What code compiled by nvcc registers as it loads. */
void **__cudaRegisterFatBinary(void *binary) { return handle(); }
void __cudaRegisterFatBinaryEnd(void **binary) {}
void __cudaUnregisterFatBinary(void **binary) {}
void __cudaRegisterFunction(void **binary, const char *host, char *device, const char *name, int limit, void *a,
                            void *b, void *c, void *d, int *size) {}
void __cudaRegisterVar(void **binary, char *host, char *device, const char *name, int external, size_t size,
                       int constant, int global) {}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    grid->x = grid->y = grid->z = block->x = block->y = block->z = 1;
    *shared = 0;
    *(void **)stream = 0;
    return cudaSuccess;
}
