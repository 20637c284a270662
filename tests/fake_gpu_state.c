/* Purpose: what the fake driver knows: memory, counts, faults, and the report about them.
 * Owns: all of it, static; mappings live until they are given back.
 * Threads: any; one lock.
 * Errors: codes of the drivers.
 * Invariants: a region that an operation touches stays until the operation has let go of it. */
#include "fake_gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES    4096u
#define SMALL_BYTES   (1u << 20) /* drivers put smaller pieces side by side, aligned to less */
#define SMALL_ALIGN   512u
#define FRESH         0xCD /* what was in memory that nobody has written */
#define DEFAULT_BYTES ((uint64_t)4 << 30)
#define DEFAULT_COUNT 2u

struct fake_gpu fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* ---- faults and counts ---- */

bool fake_hits(enum fake_fault_kind kind, uint64_t n)
{
    if (fake.fault.kind != kind || n < fake.fault.nth || n - fake.fault.nth >= fake.fault.count)
        return false;
    fake.hit_count++;
    return true;
}

int fake_begin(const char *name)
{
    int code = 0;
    size_t i = 0;
    pthread_mutex_lock(&fake.lock);
    while (i < FAKE_SYMBOLS_MAX && fake.calls[i].name && strcmp(fake.calls[i].name, name))
        i++;
    if (i < FAKE_SYMBOLS_MAX) {
        fake.calls[i].name = name;
        fake.calls[i].count++;
    }
    if (fake.fault.kind == FAULT_FAIL && !strcmp(fake.fault.symbol, name) &&
        fake_hits(FAULT_FAIL, ++fake.counts[COUNT_FAIL]))
        code = fake.fault.code;
    pthread_mutex_unlock(&fake.lock);
    return code;
}

static void bad_environment(const char *name, const char *text)
{
    fprintf(stderr, "fake GPU: %s=%s is not understood\n", name, text);
    abort();
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    uint64_t value = strtoull(text, &end, 10);
    if (*end)
        bad_environment(name, text);
    return value;
}

/* NAME=CODE of the fault that lets a call fail. */
static void read_fail(const char *text, size_t bytes)
{
    const char *code = memchr(text, '=', bytes);
    if (!code || (size_t)(code - text) >= FAKE_SYMBOL_BYTES)
        bad_environment("FAKE_GPU_FAULT", text);
    memset(fake.fault.symbol, 0, sizeof fake.fault.symbol);
    memcpy(fake.fault.symbol, text, (size_t)(code - text));
    fake.fault.code = (int)strtol(code + 1, NULL, 10);
}

static void read_fault(void)
{
    static const char *const kinds[] = {"",     "flip",  "skip", "swap", "break", "late",
                                        "idle", "other", "yes",  "no",   "fail="};
    const char *text = getenv("FAKE_GPU_FAULT");
    char *end;
    fake.fault.kind = FAULT_NONE;
    if (!text || !*text)
        return;
    size_t bytes = strcspn(text, ":");
    for (enum fake_fault_kind kind = FAULT_FLIP; kind < FAULT_FAIL; kind++)
        if (strlen(kinds[kind]) == bytes && !memcmp(kinds[kind], text, bytes))
            fake.fault.kind = kind;
    if (!strncmp(text, "fail=", 5)) {
        fake.fault.kind = FAULT_FAIL;
        read_fail(text + 5, bytes - 5);
    }
    if (fake.fault.kind == FAULT_NONE || !text[bytes])
        bad_environment("FAKE_GPU_FAULT", text);
    fake.fault.count = 1;
    fake.fault.nth = strtoull(text + bytes + 1, &end, 10);
    if (*end == ':')
        fake.fault.count = strtoull(end + 1, &end, 10);
    if (*end || fake.fault.nth == 0)
        bad_environment("FAKE_GPU_FAULT", text);
}

static void read_environment(void)
{
    uint64_t count = number("FAKE_GPU_COUNT", DEFAULT_COUNT);
    if (count > FAKE_DEVICES_MAX)
        bad_environment("FAKE_GPU_COUNT", getenv("FAKE_GPU_COUNT"));
    fake.device_count = (int)count;
    fake.memory_bytes = number("FAKE_GPU_MEMORY_BYTES", DEFAULT_BYTES);
    fake.seed = number("FAKE_GPU_SEED", 1);
    read_fault();
    memset(fake.counts, 0, sizeof fake.counts);
    memset(fake.calls, 0, sizeof fake.calls);
    fake.hit_count = fake.changed_count = 0;
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        fake.devices[i].broken = 0;
}

/* ---- report ---- */

static void report(void)
{
    static const char *const memory[MEMORY_KINDS] = {"device_memory", "pinned", "registered"};
    const char *path = getenv("FAKE_GPU_REPORT");
    uint64_t counts[MEMORY_KINDS] = {0}, streams = 0, events = 0, modules = 0, contexts = 0;
    FILE *file = path && *path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    for (struct fake_region *region = fake.regions; region; region = region->next)
        counts[region->kind]++;
    for (int i = 0; i < MEMORY_KINDS; i++)
        fprintf(file, "left %s %" PRIu64 "\n", memory[i], counts[i]);
    for (struct k3_gpu_stream *stream = fake.streams; stream; stream = stream->next)
        streams += !stream->destroyed;
    for (struct k3_gpu_event *event = fake.events; event; event = event->next)
        events += !event->destroyed;
    for (struct k3_gpu_module *module = fake.modules; module; module = module->next)
        modules++;
    for (int i = 0; i < FAKE_DEVICES_MAX; i++) {
        contexts += (uint64_t)fake.devices[i].retained;
        streams -= fake.devices[i].default_stream != NULL;
    }
    fprintf(file, "left streams %" PRIu64 "\nleft events %" PRIu64 "\nleft modules %" PRIu64 "\n",
            streams, events, modules);
    fprintf(file, "left contexts %" PRIu64 "\nchanged %" PRIu64 "\nfaults %" PRIu64 "\n", contexts,
            fake.changed_count, fake.hit_count);
    for (size_t i = 0; i < FAKE_SYMBOLS_MAX && fake.calls[i].name; i++)
        fprintf(file, "calls %s %" PRIu64 "\n", fake.calls[i].name, fake.calls[i].count);
    fclose(file);
}

void fake_control(void)
{
    pthread_mutex_lock(&fake.lock);
    report();
    read_environment();
    pthread_mutex_unlock(&fake.lock);
}

__attribute__((constructor)) static void load(void)
{
    pthread_mutex_lock(&fake.lock);
    read_environment();
    pthread_mutex_unlock(&fake.lock);
}

__attribute__((destructor)) static void unload(void)
{
    pthread_mutex_lock(&fake.lock);
    report();
    pthread_mutex_unlock(&fake.lock);
    fake_streams_end();
}

/* ---- memory ---- */

struct fake_region *fake_find(enum fake_memory kind, uintptr_t address, size_t bytes, bool as_host)
{
    const uintptr_t shift = kind == MEMORY_DEVICE ? FAKE_DEVICE_SHIFT
                            : as_host             ? 0
                                                  : FAKE_HOST_SHIFT;
    for (struct fake_region *region = fake.regions; region; region = region->next) {
        uintptr_t begin = (uintptr_t)region->host + shift;
        if (region->kind == kind && address >= begin && bytes <= region->bytes &&
            address - begin <= region->bytes - bytes)
            return region;
    }
    return NULL;
}

void fake_release(struct fake_region *region)
{
    if (!region)
        return;
    pthread_mutex_lock(&fake.lock);
    region->busy--;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static int add_region(struct fake_region *region)
{
    struct fake_device *device = &fake.devices[region->device];
    int code = 0;
    pthread_mutex_lock(&fake.lock);
    if (region->kind == MEMORY_DEVICE && region->bytes > fake.memory_bytes - device->used_bytes)
        code = K3_GPU_OUT_OF_MEMORY;
    if (!code && region->kind == MEMORY_DEVICE)
        device->used_bytes += region->bytes;
    if (!code) {
        region->next = fake.regions;
        fake.regions = region;
    }
    pthread_mutex_unlock(&fake.lock);
    return code;
}

int fake_map(enum fake_memory kind, int device, size_t bytes, struct fake_region **out)
{
    struct fake_region *region = calloc(1, sizeof *region);
    *out = NULL;
    if (!region || bytes == 0 || bytes > SIZE_MAX / 2) {
        free(region);
        return bytes == 0 ? FAKE_INVALID_VALUE : K3_GPU_OUT_OF_MEMORY;
    }
    region->kind = kind;
    region->device = device;
    region->bytes = bytes;
    int code = add_region(region);
    if (code) {
        free(region);
        return code;
    }
    region->base_bytes = bytes + 2 * (size_t)PAGE_BYTES;
    void *base = mmap(NULL, region->base_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&fake.lock);
    region->base = base == MAP_FAILED ? NULL : base;
    region->host = (char *)region->base;
    if (region->base && kind == MEMORY_DEVICE && bytes < SMALL_BYTES)
        region->host += SMALL_ALIGN;
    pthread_mutex_unlock(&fake.lock);
    if (base == MAP_FAILED)
        abort(); /* the limit of memory is set too high for this machine */
    memset(region->host, FRESH, bytes);
    *out = region;
    return 0;
}

int fake_register(void *data, size_t bytes, int device)
{
    int code = 0;
    struct fake_region *region = calloc(1, sizeof *region);
    if (!region || !data || bytes == 0) {
        free(region);
        return FAKE_INVALID_VALUE;
    }
    *region = (struct fake_region){
        .kind = MEMORY_REGISTERED, .host = data, .bytes = bytes, .device = device};
    pthread_mutex_lock(&fake.lock);
    for (struct fake_region *other = fake.regions; other; other = other->next)
        if (other->kind != MEMORY_DEVICE && other->host < (char *)data + bytes &&
            (char *)data < other->host + other->bytes)
            code = FAKE_ALREADY_REGISTERED;
    pthread_mutex_unlock(&fake.lock);
    if (!code)
        code = add_region(region);
    if (code)
        free(region);
    return code;
}

int fake_unmap(enum fake_memory kind, const void *address)
{
    struct fake_region **at = &fake.regions, *region = NULL;
    uintptr_t wanted = (uintptr_t)address - (kind == MEMORY_DEVICE ? FAKE_DEVICE_SHIFT : 0);
    pthread_mutex_lock(&fake.lock);
    while (*at && ((*at)->kind != kind || (uintptr_t)(*at)->host != wanted))
        at = &(*at)->next;
    region = *at;
    if (region) {
        *at = region->next; /* nothing finds it any more; what runs lets go of it */
        while (region->busy)
            pthread_cond_wait(&fake.changed, &fake.lock);
        if (kind == MEMORY_DEVICE)
            fake.devices[region->device].used_bytes -= region->bytes;
    }
    pthread_mutex_unlock(&fake.lock);
    if (!region)
        return kind == MEMORY_REGISTERED ? FAKE_NOT_REGISTERED : FAKE_INVALID_VALUE;
    if (region->base)
        munmap(region->base, region->base_bytes);
    free(region);
    return 0;
}
