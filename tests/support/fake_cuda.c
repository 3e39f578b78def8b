/* A driver and a cuBLAS without a GPU, for tests of the CUDA target's run time.

   Device memory is host memory, filled with 0xFF. A launched kernel calls back into
   Python, which runs it in the emulator. A capture records nodes; launching the graph
   runs them. What a real driver refuses inside of a capture is refused here too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t address;
typedef void (*callback)(int, unsigned, unsigned, unsigned, uint64_t *);

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_HANDLE = 400,
       NOT_FOUND = 500, NOT_PERMITTED = 900, NOT_CAPTURING = 901 };
enum { MOST = 4096, WORDS = 192 };

static char STREAM, CONTEXT, MODULE, HANDLE;
static callback run_kernel;
static int version = 13000, devices = 1, functions, allocations;
static unsigned condition_table[MOST];
static int conditions, conditional_nodes, has_conditionals = 1;
static int streams_set, workspaces_set, captures, replays, graphs;
static uint64_t memory_left = (uint64_t)8 << 30;
static struct { char name[80]; int words; } function_table[MOST];
static struct { char *start; size_t size; } allocation_table[MOST];

/* Settings and questions of the tests */
void fake_reset(callback f) {
    run_kernel = f; version = 13000; devices = 1; memory_left = (uint64_t)8 << 30;
    streams_set = workspaces_set = captures = replays = 0;
    conditional_nodes = 0; has_conditionals = 1;
}
void fake_version(int v) { version = v; }
void fake_devices(int n) { devices = n; }
void fake_memory(uint64_t bytes) { memory_left = bytes; }
int fake_captures(void) { return captures; }
int fake_replays(void) { return replays; }
int fake_graphs(void) { return graphs; }
int fake_live(void) {
    int live = 0;
    for (int i = 0; i < allocations; i++) live += allocation_table[i].start != 0;
    return live;
}
int fake_register(const char *name, int words) {
    if (functions == MOST || words > WORDS) return -1;
    strncpy(function_table[functions].name, name, 79);
    function_table[functions].words = words;
    return functions++;
}
/* Bytes from an address to the end of its allocation, or -1 */
int64_t fake_extent(address a) {
    char *p = (char *)a;
    for (int i = 0; i < allocations; i++) {
        char *start = allocation_table[i].start;
        size_t size = allocation_table[i].size;
        if (start && p >= start && p <= start + size) return start + size - p;
    }
    return -1;
}

/* Graphs */
enum kind { KERNEL, PRODUCT, COPY, FILL, SET, CONDITIONAL };
typedef struct {
    int ta, tb, m, n, k, lda, ldb, ldc, batch, wide;
    long long sa, sb, sc;
    double alpha, beta;
    char *a, *b, *c;
} product;
typedef struct {
    enum kind kind;
    int function;
    unsigned x, y, block;
    uint64_t words[WORDS];
    product p;
    char *target, *source;
    unsigned char byte;
    size_t size;
    uint64_t handle;
    int loop;
    struct graph *body;
} node;
typedef struct graph { node *nodes; int count, room; } graph;
static graph *recording;
int fake_conditionals(void) { return conditional_nodes; }
void fake_without_conditionals(void) { has_conditionals = 0; }

static double element(const char *base, long long i, int wide) {
    return wide ? ((const double *)base)[i] : ((const float *)base)[i];
}
static void multiply(const product *p) {
    for (int l = 0; l < p->batch; l++)
    for (int j = 0; j < p->n; j++)
    for (int i = 0; i < p->m; i++) {
        double sum = 0;
        for (int q = 0; q < p->k; q++) {
            long long x = p->ta ? (long long)i * p->lda + q : (long long)q * p->lda + i;
            long long y = p->tb ? (long long)q * p->ldb + j : (long long)j * p->ldb + q;
            sum += element(p->a, l * p->sa + x, p->wide)
                 * element(p->b, l * p->sb + y, p->wide);
        }
        long long at = l * p->sc + (long long)j * p->ldc + i;
        double old = p->beta ? p->beta * element(p->c, at, p->wide) : 0;
        if (p->wide) ((double *)p->c)[at] = p->alpha * sum + old;
        else ((float *)p->c)[at] = (float)(p->alpha * sum + old);
    }
}
static void run(node *n);
static void run_all(graph *g) { for (int i = 0; i < g->count; i++) run(&g->nodes[i]); }
static void run(node *n) {
    if (n->kind == SET) condition_table[n->handle] = *(unsigned *)n->source;
    if (n->kind == CONDITIONAL)
        while (condition_table[n->handle]) { run_all(n->body); if (!n->loop) break; }
    if (n->kind == KERNEL) run_kernel(n->function, n->x, n->y, n->block, n->words);
    if (n->kind == PRODUCT) multiply(&n->p);
    if (n->kind == COPY) memmove(n->target, n->source, n->size);
    if (n->kind == FILL) memset(n->target, n->byte, n->size);
}
static int put(node *n) {
    if (!recording) { run(n); return 0; }
    if (recording->count == recording->room) {
        recording->room = 2 * recording->room + 16;
        recording->nodes = realloc(recording->nodes, recording->room * sizeof(node));
    }
    recording->nodes[recording->count++] = *n;
    return 0;
}

/* The driver */
int cuInit(unsigned flags) { return devices ? 0 : NO_DEVICE; }
int cuDriverGetVersion(int *v) { *v = version; return 0; }
int cuDeviceGetCount(int *n) { *n = devices; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, "a GPU that is not there", size); return 0;
}
int cuDeviceGetAttribute(int *value, int which, int device) {
    *value = which == 75 ? 9 : which == 76 ? 0 : 2; return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &CONTEXT; return 0; }
int cuCtxSetCurrent(void *context) { return context == &CONTEXT ? 0 : INVALID_HANDLE; }
int cuStreamCreate(void **stream, unsigned flags) {
    *stream = &STREAM; return flags == 1 ? 0 : 1;
}
int cuModuleLoadData(void **module, const void *image) {
    if (recording) return NOT_PERMITTED;
    *module = &MODULE;
    if (!memcmp(image, "\n.version", 9) && has_conditionals) return 0;
    return memcmp(image, "\x7f""ELF", 4) ? INVALID_IMAGE : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    if (!strcmp(name, "sg_set_condition")) { *function = (void *)(uintptr_t)(MOST + 1); return 0; }
    for (int i = 0; i < functions; i++)
        if (!strcmp(function_table[i].name, name)) {
            *function = (void *)(uintptr_t)(i + 1); return 0;
        }
    return NOT_FOUND;
}
int cuMemAlloc_v2(address *a, size_t size) {
    if (recording) return NOT_PERMITTED;
    if (size > memory_left || allocations == MOST) return OUT_OF_MEMORY;
    char *start = aligned_alloc(256, (size + 255) / 256 * 256);
    memset(start, 0xFF, size);
    memory_left -= size;
    allocation_table[allocations].start = start;
    allocation_table[allocations++].size = size;
    *a = (address)start;
    return 0;
}
int cuMemFree_v2(address a) {
    if (recording) return NOT_PERMITTED;
    for (int i = 0; i < allocations; i++)
        if (allocation_table[i].start == (char *)a && a) {
            free(allocation_table[i].start);
            memory_left += allocation_table[i].size;
            allocation_table[i].start = 0;
            return 0;
        }
    return INVALID_HANDLE;
}
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t size, void *stream) {
    if (recording) return NOT_PERMITTED;
    if (fake_extent(to) < (int64_t)size || stream != &STREAM) return INVALID_HANDLE;
    memcpy((void *)to, from, size); return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t size, void *stream) {
    if (recording) return NOT_PERMITTED;
    if (fake_extent(from) < (int64_t)size || stream != &STREAM) return INVALID_HANDLE;
    memcpy(to, (void *)from, size); return 0;
}
int cuMemcpyDtoDAsync_v2(address to, address from, size_t size, void *stream) {
    node n = {COPY};
    n.target = (char *)to; n.source = (char *)from; n.size = size;
    return put(&n);
}
int cuMemsetD8Async(address to, unsigned char byte, size_t size, void *stream) {
    node n = {FILL};
    if (fake_extent(to) < (int64_t)size) return INVALID_HANDLE;
    n.target = (char *)to; n.byte = byte; n.size = size;
    return put(&n);
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **parameters, void **extra) {
    node n = {KERNEL};
    n.function = (int)(uintptr_t)function - 1;
    if (n.function == MOST) { /* faults outside of a graph */
        n.kind = SET; n.handle = *(uint64_t *)parameters[0];
        n.source = *(char **)parameters[1];
        int known = n.handle && n.handle < MOST && fake_extent((address)n.source) >= 8;
        return recording && known ? put(&n) : INVALID_HANDLE;
    }
    int bad = n.function < 0 || n.function >= functions || stream != &STREAM;
    if (bad || !x || !y || z != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || y > 65535)
        return 1;
    n.x = x; n.y = y; n.block = bx;
    for (int i = 0; i < function_table[n.function].words; i++)
        memcpy(&n.words[i], parameters[i], 8);
    return put(&n);
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    if (recording) return NOT_CAPTURING;
    captures++;
    recording = calloc(1, sizeof(graph));
    return 0;
}
int cuStreamEndCapture(void *stream, void **g) {
    if (!recording) return NOT_CAPTURING;
    *g = recording; recording = 0; return 0;
}
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **g,
                              void ***nodes, void **edges, size_t *count) {
    static void *last;
    if (!recording || !has_conditionals) return NOT_CAPTURING;
    last = (void *)(uintptr_t)recording->count;
    *status = 1; *id = 1; *g = recording; *nodes = &last; *edges = 0;
    *count = recording->count > 0;
    return 0;
}
int cuStreamBeginCaptureToGraph(void *stream, void *g, void **after, void *edges,
                                size_t count, int mode) {
    graph *into = g;
    if (recording) return NOT_CAPTURING;
    if (count != (into->count > 0)) return INVALID_HANDLE;
    if (count && (int)(uintptr_t)*after != into->count) return INVALID_HANDLE;
    recording = into;
    return 0;
}
int cuGraphConditionalHandleCreate(uint64_t *handle, void *g, void *context,
                                   unsigned value, unsigned flags) {
    if (!g || context != &CONTEXT || conditions == MOST - 1) return INVALID_HANDLE;
    *handle = ++conditions;
    return 0;
}
typedef struct {
    int type, reserved[3]; uint64_t handle; int kind; unsigned size; void **graphs;
    void *context; uint64_t unused[26];
} node_parameters;
int cuGraphAddNode_v2(void **made, void *g, void **after, void *edges, size_t count,
                      node_parameters *p) {
    graph *into = g;
    if (recording || sizeof *p != 256 || p->type != 13 || p->size != 1) return 1;
    if (!p->handle || p->handle > conditions || p->context != &CONTEXT) return 1;
    if (count != 1 || (int)(uintptr_t)after[0] != into->count) return INVALID_HANDLE;
    node n = {CONDITIONAL};
    n.handle = p->handle; n.loop = p->kind; n.body = calloc(1, sizeof(graph));
    p->graphs = malloc(sizeof(void *));
    p->graphs[0] = n.body;
    recording = into; put(&n); recording = 0;
    *made = (void *)(uintptr_t)into->count;
    conditional_nodes++;
    return 0;
}
int cuGraphInstantiateWithFlags(void **ready, void *g, unsigned long long flags) {
    *ready = g; graphs++; return 0;
}
int cuGraphDestroy(void *g) { return 0; } /* the ready graph is the same */
int cuGraphUpload(void *ready, void *stream) { return 0; }
int cuGraphExecDestroy(void *ready) { graphs--; free(((graph *)ready)->nodes); free(ready); return 0; }
int cuGraphLaunch(void *ready, void *stream) {
    graph *g = ready;
    if (recording) return NOT_PERMITTED;
    replays++;
    run_all(g);
    return 0;
}
int cuStreamSynchronize(void *stream) { return recording ? NOT_PERMITTED : 0; }

/* cuBLAS: a workspace has to be given after the stream */
int cublasCreate_v2(void **handle) { *handle = &HANDLE; return recording ? 3 : 0; }
int cublasSetStream_v2(void *handle, void *stream) {
    streams_set++; workspaces_set = 0; return stream == &STREAM ? 0 : 7;
}
int cublasSetWorkspace_v2(void *handle, void *p, size_t size) {
    workspaces_set++; return fake_extent((address)p) >= (int64_t)size ? 0 : 7;
}
static int gemm(node *n) {
    product *p = &n->p;
    if (!workspaces_set || !streams_set) return 1;
    if (p->lda < (p->ta ? p->k : p->m) || p->ldb < (p->tb ? p->n : p->k)) return 7;
    if (p->ldc < p->m || !p->m || !p->n || !p->k) return 7;
    n->kind = PRODUCT;
    return put(n);
}
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, void *alpha, void *a,
                 int kind_a, int lda, void *b, int kind_b, int ldb, void *beta, void *c,
                 int kind_c, int ldc, int compute, int algorithm) {
    int wide = kind_a == 1;
    node x = {PRODUCT};
    if (kind_a != kind_b || kind_b != kind_c || compute != (wide ? 70 : 68)) return 7;
    double al = wide ? *(double *)alpha : *(float *)alpha;
    double be = wide ? *(double *)beta : *(float *)beta;
    x.p = (product){ta, tb, m, n, k, lda, ldb, ldc, 1, wide, 0, 0, 0, al, be, a, b, c};
    return gemm(&x);
}
int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k,
                               void *alpha, void *a, int kind_a, int lda, long long sa,
                               void *b, int kind_b, int ldb, long long sb, void *beta,
                               void *c, int kind_c, int ldc, long long sc, int batch,
                               int compute, int algorithm) {
    int wide = kind_a == 1;
    node x = {PRODUCT};
    if (kind_a != kind_b || kind_b != kind_c || compute != (wide ? 70 : 68)) return 7;
    double al = wide ? *(double *)alpha : *(float *)alpha;
    double be = wide ? *(double *)beta : *(float *)beta;
    x.p = (product){ta, tb, m, n, k, lda, ldb, ldc, batch, wide, sa, sb, sc, al, be,
                    a, b, c};
    return gemm(&x);
}
