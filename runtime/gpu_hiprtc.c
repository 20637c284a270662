/* Purpose: compile a kernel for the AMD GPU that is there, by the compiler of its own driver stack.
 * Owns: nothing; the library stays open for the life of the process.
 * Threads: any that has entered the GPU.
 * Errors: K3_EUNSUPPORTED with the first line of what the compiler said; K3_ENOMEM.
 * Invariants: no option names a target, so the code is for the GPU of the calling thread. */
#include "dl_calls.h"
#include "gpu_kernels.h"

#include <stdlib.h>
#include <string.h>

#define SAID_BYTES 160 /* of the compiler's log, in an error */

struct program;

struct hiprtc {
    int (*create)(struct program **program, const char *source, const char *name, int header_count,
                  const char **headers, const char **header_names);
    int (*compile)(struct program *program, int option_count, const char **options);
    int (*log_bytes)(struct program *program, size_t *bytes);
    int (*log)(struct program *program, char *text);
    int (*code_bytes)(struct program *program, size_t *bytes);
    int (*code)(struct program *program, char *code);
    int (*destroy)(struct program **program);
    void *handle;
};

static int find(struct hiprtc *rtc, struct k3_err *err)
{
    /* Up to ROCm 5 the compiler's calls are in libamdhip64 itself. */
    static const char *const libraries[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5",
                                            "libamdhip64.so.5", NULL};
    const char *used;
    static const struct {
        size_t offset;
        const char *name;
    } calls[] = {
        {offsetof(struct hiprtc, create), "hiprtcCreateProgram"},
        {offsetof(struct hiprtc, compile), "hiprtcCompileProgram"},
        {offsetof(struct hiprtc, log_bytes), "hiprtcGetProgramLogSize"},
        {offsetof(struct hiprtc, log), "hiprtcGetProgramLog"},
        {offsetof(struct hiprtc, code_bytes), "hiprtcGetCodeSize"},
        {offsetof(struct hiprtc, code), "hiprtcGetCode"},
        {offsetof(struct hiprtc, destroy), "hiprtcDestroyProgram"},
    };
    rtc->handle = k3_dl_open(libraries, &used);
    if (!rtc->handle)
        return k3_fail(err, K3_EUNSUPPORTED, "hipRTC (%s) is not on this machine", libraries[0]);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!k3_dl_find(rtc->handle, calls[i].name, rtc, calls[i].offset))
            return k3_fail(err, K3_EUNSUPPORTED, "hipRTC here has no %s", calls[i].name);
    return 0;
}

static int fail_compile(const struct hiprtc *rtc, struct program *program, int code,
                        struct k3_err *err)
{
    char said[SAID_BYTES + 1] = "";
    size_t bytes = 0;
    char *text = NULL;
    if (rtc->log_bytes(program, &bytes) == 0 && bytes > 0 && bytes < (1u << 20))
        text = calloc(bytes + 1, 1);
    if (text && rtc->log(program, text) == 0)
        strncat(said, text, SAID_BYTES);
    free(text);
    said[strcspn(said, "\n")] = 0;
    return k3_fail(err, K3_EUNSUPPORTED, "hipRTC does not compile the kernel (code %d): %s", code,
                   said[0] ? said : "it says nothing");
}

static int compile(const struct hiprtc *rtc, struct program *program, char **out,
                   struct k3_err *err)
{
    const char *options[] = {"-O3"};
    size_t bytes = 0;
    int code = rtc->compile(program, 1, options);
    if (code == 0)
        code = rtc->code_bytes(program, &bytes);
    if (code)
        return fail_compile(rtc, program, code, err);
    *out = malloc(bytes ? bytes : 1);
    if (!*out)
        return k3_fail(err, K3_ENOMEM, "no memory for %zu bytes of GPU code", bytes);
    code = rtc->code(program, *out);
    if (code == 0)
        return 0;
    free(*out);
    *out = NULL;
    return fail_compile(rtc, program, code, err);
}

int k3_hiprtc_compile(const char *source, const char *name, char **code, struct k3_err *err)
{
    struct hiprtc rtc = {.handle = NULL};
    struct program *program = NULL;
    *code = NULL;
    int rc = find(&rtc, err);
    if (!rc && rtc.create(&program, source, name, 0, NULL, NULL) != 0)
        rc = k3_fail(err, K3_EUNSUPPORTED, "hipRTC does not take the source of %s", name);
    if (!rc)
        rc = compile(&rtc, program, code, err);
    if (program)
        (void)rtc.destroy(&program);
    return rc; /* the library stays open: compilers with threads of their own do not unload well */
}
