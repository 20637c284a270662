/* Purpose: findings about GPUs: drivers, each GPU with its rates, what reading into them needs.
 * Owns: a device while it is measured.
 * Threads: the main thread.
 * Errors: none: what cannot be found out is a finding.
 * Invariant: that a GPU works is found by using it as a load does, with a check of known bytes. */
#include "bench_dev.h"
#include "doctor.h"
#include "gpu_kernels.h"
#include "io_gpufile.h"
#include "machine.h"
#include "numa.h"
#include "sizes.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#define GPU_COUNT_MAX 16u /* of one kind: rows that are written; more are counted */
/* One launch of a load, and as much to copy from; a GPU in use may have no more. */
#define POOL_BYTES (UINT64_C(64) << 20)
#define COPY_NS    200000000u /* a look, not a benchmark: that is `bench` */
#define CHECK_NS   100000000u

static const struct kind {
    enum k3_gpu_kind kind;
    const char *name, *module;  /* of the kernel */
    const char *maker, *vendor; /* on the PCI bus */
    const struct k3_dev_ops *ops;
} kinds[] = {
    {K3_GPU_CUDA, "cuda", "/sys/module/nvidia/version", "NVIDIA", "0x10de", &k3_dev_cuda},
    {K3_GPU_HIP, "hip", "/sys/module/amdgpu/version", "AMD", "0x1002", &k3_dev_hip},
};

/* CUDA counts in thousands, HIP has a patch number behind. */
static void version_text(const struct kind *kind, int version, char *text, size_t cap)
{
    if (kind->kind == K3_GPU_CUDA)
        snprintf(text, cap, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    else
        snprintf(text, cap, "HIP %d.%d", version / 10000000, version / 100000 % 100);
}

/* What the driver says about it, then what it does. */
static void find_one(struct k3_doctor *doctor, const struct kind *kind, uint32_t index)
{
    char name[K3_FINDING_NAME_BYTES], node[32] = "memory node not known", text[512];
    struct k3_gpu_about about;
    struct k3_bench_dev dev;
    double copied = 0, checked = 0;
    struct k3_err err;
    k3_err_init(&err);
    snprintf(name, sizeof name, "%s:%u", kind->name, index);
    struct k3_finding *finding = k3_doctor_add(doctor, name);
    if (k3_gpu_ask(kind->kind, index, &about, &err)) {
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "see what its driver says: nvidia-smi, rocm-smi, dmesg");
        return;
    }
    int number = k3_numa_node_of_pci("", about.bus_id);
    if (number != K3_NUMA_NONE)
        snprintf(node, sizeof node, "memory node %d", number);
    snprintf(text, sizeof text, "%s, capability %d.%d, PCI %s, %s, %s of %s free", about.name,
             about.major, about.minor, about.bus_id, node, k3_size_text(about.free_bytes).s,
             k3_size_text(about.total_bytes).s);
    k3_finding_value(finding, "%s", text);
    int rc = k3_bench_dev_open(kind->ops, index, POOL_BYTES, POOL_BYTES, &dev, &err);
    if (!rc) {
        rc = k3_bench_dev_copy(&dev, COPY_NS, &copied, &err);
        if (!rc)
            rc = k3_bench_dev_check(&dev, CHECK_NS, &checked, &err);
        k3_bench_dev_close(&dev);
    }
    if (rc) {
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "%s",
                        rc == K3_EDEVICE ? "nothing can be loaded there: test it, or use another"
                                         : "load --device with another one, or host");
        return;
    }
    k3_finding_value(finding,
                     "%s; code loads, self-test right; pinned copies %.1f GB/s, checks %.1f GB/s",
                     text, copied, checked);
}

/* Is there a display or 3D controller of that vendor?  A machine that has none misses nothing. */
static bool has_gpu(const char *vendor)
{
    char path[300], text[32];
    bool found = false;
    DIR *dir = opendir("/sys/bus/pci/devices");
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry && !found; entry = readdir(dir)) {
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.255s/vendor", entry->d_name);
        found = k3_machine_text(path, text, sizeof text) && strcmp(text, vendor) == 0;
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%.255s/class", entry->d_name);
        found = found && k3_machine_text(path, text, sizeof text) &&
                (strncmp(text, "0x03", 4) == 0 || strncmp(text, "0x12", 4) == 0);
    }
    if (dir)
        closedir(dir);
    return found;
}

static void find_kind(struct k3_doctor *doctor, const struct kind *kind)
{
    struct k3_finding *finding = k3_doctor_add(doctor, kind->name);
    const struct k3_gpu_api *api = NULL;
    char version[32] = "of a version that is not known", module[64];
    uint32_t count = 0;
    int number = 0;
    struct k3_err err;
    k3_err_init(&err);
    int rc = k3_gpu_api_open(kind->kind, &api, &err);
    if (!rc)
        rc = k3_gpu_count(kind->kind, &count, &err);
    if (rc && !has_gpu(kind->vendor)) {
        k3_finding_absent(finding, "no %s GPU is on the PCI bus (%s)", kind->maker, err.text);
        return;
    }
    if (rc) {
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "load --device host works");
        return;
    }
    if (api->driver_version(&number) == K3_GPU_SUCCESS)
        version_text(kind, number, version, sizeof version);
    if (!k3_machine_text(kind->module, module, sizeof module))
        snprintf(module, sizeof module, "not known");
    k3_finding_value(finding, "%s, %s, kernel driver %s, %u GPU%s", api->library, version, module,
                     count, count == 1 ? "" : "s");
    if (k3_gpu_kernels_probe(kind->kind, &err)) {
        k3_finding_missing(finding, "%s", err.text);
        k3_finding_next(finding, "load --device host works");
    } else if (count > GPU_COUNT_MAX) {
        k3_finding_next(finding, "only the first %u are looked at", GPU_COUNT_MAX);
    }
    for (uint32_t i = 0; i < count && i < GPU_COUNT_MAX; i++)
        find_one(doctor, kind, i);
}

/* ---- reading into a GPU past the memory of the host ---- */

static void find_nvidia_fs(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "nvidia_fs");
    char text[128];
    if (k3_machine_text("/proc/driver/nvidia-fs/version", text, sizeof text)) {
        k3_finding_value(finding, "loaded: %s", text);
        return;
    }
    k3_finding_absent(finding, "the kernel module nvidia-fs is not loaded");
    k3_finding_next(finding, "none is needed for loads through pinned memory; modprobe nvidia-fs, "
                             "where cuFile should read straight into a GPU");
}

static bool kernel_option(const char *path, const char *name, char *value, size_t cap)
{
    char line[256];
    size_t name_bytes = strlen(name);
    bool found = false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    snprintf(value, cap, "n");
    while (!found && fgets(line, sizeof line, file)) {
        found = strncmp(line, name, name_bytes) == 0 && line[name_bytes] == '=';
        if (found)
            snprintf(value, cap, "%.*s", (int)strcspn(line + name_bytes + 1, "\n"),
                     line + name_bytes + 1);
    }
    fclose(file);
    return true;
}

static bool has_iommu(void)
{
    bool found = false;
    DIR *dir = opendir("/sys/class/iommu");
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir))
        found = found || entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return found;
}

static void find_p2pdma(struct k3_doctor *doctor)
{
    struct k3_finding *finding = k3_doctor_add(doctor, "p2pdma");
    struct utsname name;
    char path[256], value[16];
    bool iommu = has_iommu();
    memset(&name, 0, sizeof name);
    (void)uname(&name);
    snprintf(path, sizeof path, "/boot/config-%.200s", name.release);
    if (!kernel_option(path, "CONFIG_PCI_P2PDMA", value, sizeof value)) {
        k3_finding_absent(finding, "not known: %s cannot be read", path);
        k3_finding_next(finding, "zgrep P2PDMA /proc/config.gz, on the host of a container");
        return;
    }
    k3_finding_value(finding, "CONFIG_PCI_P2PDMA=%s, IOMMU %s", value, iommu ? "on" : "off");
    if (strcmp(value, "y") != 0) {
        k3_finding_absent(finding, "this kernel moves nothing from drive to GPU by itself");
        k3_finding_next(finding, "none is needed for loads through pinned memory; nvidia-fs, "
                                 "or a kernel with CONFIG_PCI_P2PDMA, for reads into a GPU");
    } else if (iommu) {
        k3_finding_slower(finding, "an IOMMU stands between drives and GPUs: it slows reads "
                                   "straight into a GPU, or refuses them");
        k3_finding_next(finding, "iommu=pt on the kernel's command line, and ACS off in the "
                                 "firmware");
    }
}

/* Is it there, and could its reads go straight into a GPU?  It is not started. */
static void find_library(struct k3_doctor *doctor, const char *name, enum k3_gpu_kind kind,
                         const char *next)
{
    static const char *const libraries[2][2] = {
        [K3_GPU_CUDA] = {"libcufile.so.0", "libcufile.so.0"},
        [K3_GPU_HIP] = {"libhipfile.so.0", "libhipfile.so"}};
    struct k3_finding *finding = k3_doctor_add(doctor, name);
    struct k3_err why;
    k3_err_init(&why);
    for (size_t i = 0; i < 2; i++) {
        void *handle = dlopen(libraries[kind][i], RTLD_LAZY | RTLD_LOCAL);
        if (!handle)
            continue;
        k3_finding_value(finding, "%s is there", libraries[kind][i]);
        dlclose(handle);
        if (!k3_gpufile_is_promising(kind, &why))
            k3_finding_slower(finding, "%s", why.text);
        return;
    }
    k3_finding_absent(finding, "no %s on this machine", libraries[kind][0]);
    k3_finding_next(finding, "%s", next);
}

void k3_doctor_gpu(struct k3_doctor *doctor)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        find_kind(doctor, &kinds[i]);
    find_library(doctor, "cufile", K3_GPU_CUDA,
                 "none is needed for loads through pinned memory; it comes with GPUDirect Storage");
    find_library(doctor, "hipfile", K3_GPU_HIP,
                 "none is needed for loads through pinned memory; it comes with ROCm");
    find_nvidia_fs(doctor);
    find_p2pdma(doctor);
}
