/* Purpose: findings about the machine: processors, memory, limits, kernel, io_uring.
 * Owns: nothing beyond a call.
 * Threads: the main thread.
 * Errors: none: what cannot be found out is a finding.
 * Invariant: io_uring and its registered memory are found by using them, as a load does. */
#include "doctor.h"
#include "io.h"
#include "machine.h"
#include "mem.h"
#include "mem_room.h"
#include "numa.h"
#include "progress.h"
#include "sha256_blocks.h"
#include "sizes.h"
#include "tree.h"
#include "workers.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#define HASH_BYTES       ((size_t)16 << 20) /* beyond most caches of one core, 5 ms */
#define HASH_NS          100000000u         /* long enough for a clock that rises under load */
#define REGISTER_BYTES   ((size_t)4 << 20)  /* one slot of a load */
#define LOCKED_BYTES     (64u << 20)        /* what a load registers at most */
#define OPEN_FILE_COUNT  1600u              /* K3 at TP8 has 760 parts, opened twice if direct */
#define CAP_IPC_LOCK_BIT 14

static void find_cpu(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "cpu");
    uint32_t usable = k3_cpu_count();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t percent = k3_machine_cpu_percent_max();
    k3_finding_value(finding, "%u cores usable of %ld online", usable, online);
    if (percent && percent < (uint64_t)usable * 100) {
        k3_finding_slower(finding, "the control group allows the time of %.2f cores",
                          (double)percent / 100);
        k3_finding_next(finding, "raise the CPU limit of the container (--cpus, limits.cpu)");
    } else if (online > 0 && usable < (uint32_t)online) {
        k3_finding_slower(finding, "others are shut out by affinity or a cpuset");
        k3_finding_next(finding, "start without taskset or numactl, or widen the cpuset, where "
                                 "the other cores are free");
    }
}

/* GB/s of the tree's unit digests on this core; 0 without memory. */
static double hash_rate(void)
{
    uint8_t digest[K3_DIGEST_BYTES];
    struct k3_sha256 *sha = NULL;
    void *data = NULL;
    uint64_t bytes = 0, begin_ns = 0, spent_ns = 0;
    if (k3_sha256_open(&sha, NULL) == 0 && k3_mem_alloc(HASH_BYTES, &data, NULL) == 0) {
        memset(data, 0x5a, HASH_BYTES);
        begin_ns = k3_now_ns();
        do {
            const uint8_t *unit = (const uint8_t *)data + bytes % HASH_BYTES;
            k3_unit_digest(sha, unit, K3_UNIT_BYTES, digest);
            bytes += K3_UNIT_BYTES;
            spent_ns = k3_now_ns() - begin_ns;
        } while (spent_ns < HASH_NS);
    }
    k3_mem_free(data, HASH_BYTES);
    k3_sha256_close(sha);
    return spent_ns ? (double)bytes / (double)spent_ns : 0;
}

static void find_hash(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "sha256");
    enum k3_sha256_form form = k3_sha256_form();
    double rate = hash_rate();
    k3_finding_value(finding, "%s, %.2f GB/s on one core", k3_sha256_form_name(form), rate);
    if (rate <= 0)
        k3_finding_missing(finding, "no memory to measure it");
    else if (form == K3_SHA256_LIBCRYPTO)
        k3_finding_slower(finding, "this CPU, or what runs it, shows neither AVX-512 nor the SHA "
                                   "extensions");
    if (finding->state == K3_FINDING_SLOWER)
        k3_finding_next(finding, "in a virtual machine, pass the host's CPU through");
}

static void find_memory(struct k3_doctor *doctor)
{
    struct k3_mem_room memory;
    (void)k3_mem_room("", &memory);
    struct k3_finding *finding = k3_doctor_add(doctor, "memory");
    if (memory.total_bytes)
        k3_finding_value(finding, "%s, %s of it available", k3_size_text(memory.total_bytes).s,
                         k3_size_text(memory.available_bytes).s);
    else
        k3_finding_missing(finding, "/proc/meminfo does not say");
    finding = k3_doctor_add(doctor, "memory_limit");
    if (memory.limit_bytes == K3_MEM_NO_LIMIT) {
        k3_finding_value(finding, "no limit of a control group");
        return;
    }
    k3_finding_value(finding, "%s, %s of it left", k3_size_text(memory.limit_bytes).s,
                     k3_size_text(memory.left_bytes).s);
    if (memory.left_bytes < memory.available_bytes) {
        k3_finding_slower(finding, "the control group gives less than the machine has");
        k3_finding_next(finding,
                        "raise the memory limit of the container (--memory, limits.memory) to the "
                        "images that are loaded, and 1 GiB");
    }
}

/* "always [madvise] never": the word in brackets. */
static bool chosen_word(const char *path, char *word, size_t cap)
{
    char text[128];
    if (!k3_machine_text(path, text, sizeof text))
        return false;
    const char *begin = strchr(text, '[');
    begin = begin ? begin + 1 : text;
    size_t n = strcspn(begin, "] ");
    if (n >= cap)
        return false;
    memcpy(word, begin, n);
    word[n] = 0;
    return true;
}

static void find_huge_pages(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "huge_pages");
    char enabled[32], defrag[32] = "not known";
    if (!chosen_word("/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof enabled)) {
        k3_finding_missing(finding, "this kernel has no transparent huge pages, or /sys is not "
                                    "mounted");
        k3_finding_next(finding, "none is needed: images then lie in pages of 4 KiB");
        return;
    }
    (void)chosen_word("/sys/kernel/mm/transparent_hugepage/defrag", defrag, sizeof defrag);
    k3_finding_value(finding, "enabled %s, defrag %s", enabled, defrag);
    if (strcmp(enabled, "never") == 0) {
        k3_finding_slower(finding,
                          "images lie in pages of 4 KiB: more page faults while they fill");
        k3_finding_next(finding, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
    } else if (strcmp(defrag, "never") == 0) {
        k3_finding_slower(finding, "no huge page is made free where memory is in pieces");
        k3_finding_next(finding, "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag");
    }
}

static void find_nodes(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "numa");
    uint32_t count = k3_numa_node_count("");
    if (count == 0) {
        k3_finding_missing(finding, "/sys/devices/system/node does not say");
        return;
    }
    k3_finding_value(finding, "%u memory node%s", count, count == 1 ? "" : "s");
    if (count > 1)
        k3_finding_next(finding,
                        "load to a GPU uses memory and processors of its node; for load to "
                        "the host, where the drives hang on one node, try numactl "
                        "--cpunodebind");
}

/* ---- limits ---- */

static bool has_lock_right(void)
{
    char text[64];
    if (!k3_machine_field("/proc/self/status", "CapEff", text, sizeof text))
        return false;
    return strtoull(text, NULL, 16) >> CAP_IPC_LOCK_BIT & 1;
}

static void find_locked_memory(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "locked_memory");
    struct rlimit limit = {0, 0};
    bool may = has_lock_right();
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        k3_finding_value(finding, "RLIMIT_MEMLOCK unlimited, CAP_IPC_LOCK %s", may ? "yes" : "no");
    else
        k3_finding_value(finding, "RLIMIT_MEMLOCK %s, CAP_IPC_LOCK %s",
                         k3_size_text(limit.rlim_cur).s, may ? "yes" : "no");
    if (may || limit.rlim_cur >= LOCKED_BYTES)
        return;
    k3_finding_slower(finding, "too little to register the slots of a load with io_uring");
    k3_finding_next(finding, "ulimit -l unlimited; in a container --ulimit memlock=-1 or "
                             "--cap-add IPC_LOCK");
}

static void find_open_files(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "open_files");
    struct rlimit limit = {0, 0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    k3_finding_value(finding, "RLIMIT_NOFILE %" PRIu64 ", may be raised to %" PRIu64,
                     (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_max);
    if (limit.rlim_max >= OPEN_FILE_COUNT)
        return;
    k3_finding_slower(finding,
                      "all ranks of K3 at once need %u: its parts, each opened twice for "
                      "direct reads",
                      OPEN_FILE_COUNT);
    k3_finding_next(finding, "load fewer --ranks at once, or raise the hard limit (ulimit -Hn)");
}

static void find_kernel(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "kernel");
    struct utsname name;
    unsigned major_number = 0, minor_number = 0;
    if (uname(&name)) {
        k3_finding_missing(finding, "uname fails");
        return;
    }
    char *end;
    major_number = (unsigned)strtoul(name.release, &end, 10);
    if (*end == '.')
        minor_number = (unsigned)strtoul(end + 1, NULL, 10);
    k3_finding_value(finding, "%s %s %s", name.sysname, name.release, name.machine);
    if (major_number > 5 || (major_number == 5 && minor_number >= 6))
        return;
    k3_finding_slower(finding, "io_uring has the reads that are used since 5.6");
    k3_finding_next(finding,
                    "a kernel of 5.12 or later, whose rings do not count as locked memory");
}

/* ---- io_uring ---- */

static void advise_ring(struct k3_finding *finding)
{
    char disabled[16], seccomp[16] = "";
    const char *path = "/proc/sys/kernel/io_uring_disabled";
    bool has_switch = k3_machine_text(path, disabled, sizeof disabled);
    (void)k3_machine_field("/proc/self/status", "Seccomp", seccomp, sizeof seccomp);
    if (has_switch && strcmp(disabled, "0") != 0)
        k3_finding_next(finding, "sysctl -w kernel.io_uring_disabled=0 on the host; it is %s",
                        disabled);
    else if (strcmp(seccomp, "2") == 0)
        k3_finding_next(
            finding,
            "/proc/self/status has Seccomp: 2, a filter, as containers set one: allow "
            "io_uring_setup, io_uring_enter and io_uring_register in it (docker and podman: "
            "--security-opt seccomp=PROFILE.json; Kubernetes: securityContext.seccompProfile of "
            "type Localhost); until then load uses pread");
    else
        k3_finding_next(finding,
                        "no seccomp filter is set and the sysctl allows rings: a kernel of "
                        "5.6 or later, or another security module; until then load uses "
                        "pread");
}

/* Does the engine take memory as registered?  Asked by opening it with a slot. */
static void find_registered(struct k3_doctor *doctor, bool has_ring)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "registered_buffers");
    struct k3_io *io = NULL;
    struct k3_io_region region = {NULL, REGISTER_BYTES};
    struct k3_err note, err;
    k3_err_init(&note);
    k3_err_init(&err);
    if (!has_ring) {
        k3_finding_missing(finding, "they need io_uring");
        return;
    }
    int rc = k3_mem_alloc(region.bytes, &region.data, &err);
    if (rc == 0) {
        struct k3_io_options options = {
            .depth = 1, .region_count = 1, .regions = &region, .note = &note};
        rc = k3_io_uring.open(&options, &io, &err);
        if (io)
            k3_io_uring.close(io);
    }
    k3_mem_free(region.data, region.bytes);
    if (rc || note.rc) {
        k3_finding_slower(finding, "%s", rc ? err.text : note.text);
        k3_finding_next(finding, "see locked_memory");
    } else {
        k3_finding_value(finding, "%s registered", k3_size_text(REGISTER_BYTES).s);
    }
}

static void find_ring(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "io_uring");
    struct k3_err err;
    k3_err_init(&err);
    bool has_ring = k3_io_uring.probe(NULL, &err) == 0;
    if (has_ring) {
        k3_finding_value(finding, "a read through a ring worked");
    } else {
        k3_finding_missing(finding, "%s", err.text);
        advise_ring(finding);
    }
    find_registered(doctor, has_ring);
}

void k3_doctor_machine(struct k3_doctor *doctor)
{
    find_cpu(doctor);
    find_hash(doctor);
    find_memory(doctor);
    find_huge_pages(doctor);
    find_nodes(doctor);
    find_locked_memory(doctor);
    find_open_files(doctor);
    find_kernel(doctor);
    find_ring(doctor);
}
