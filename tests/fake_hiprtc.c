/* Purpose: hipRTC of the fake driver: takes the kernels' sources and gives what its loader knows.
 * Owns: the programs until they are destroyed.
 * Threads: any; a program by one.
 * Errors: 6 (the source does not compile) with a log, where the kernel is not in it or where
 * FAKE_HIPRTC_BROKEN is set.
 * Invariant: no code is made of a source that lacks the kernel's name. */
#include "fake_gpu.h"

#include <stdlib.h>
#include <string.h>

#define COMPILATION 6
#define INVALID     3

struct program {
    char *source;
};

/* What a compilation gives: CUDA code where NVIDIA's driver will load it (fake_hip_cuda.c), else
 * what the fake driver knows. */
#ifdef FAKE_CODE
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "fake_check: .incbin \"" FAKE_CODE "unit_check.fatbin\"\n"
        "fake_check_end: .byte 0\n"
        ".balign 64\n"
        "fake_cast: .incbin \"" FAKE_CODE "cast.fatbin\"\n"
        "fake_cast_end: .byte 0\n"
        ".popsection\n");
#define HIDDEN __attribute__((visibility("hidden")))
extern const char fake_check[] HIDDEN, fake_check_end[] HIDDEN;
extern const char fake_cast[] HIDDEN, fake_cast_end[] HIDDEN;
#else
static const char fake_check[] = FAKE_HIP_MAGIC " " K3_UNIT_CHECK_NAME;
static const char fake_cast[] = FAKE_HIP_MAGIC " casts";
#define fake_check_end (fake_check + sizeof fake_check)
#define fake_cast_end  (fake_cast + sizeof fake_cast)
#endif
static const char log_text[] = "fake hipRTC: error: no kernel in this source\nsecond line\n";

int hiprtcCreateProgram(struct program **out, const char *source, const char *name,
                        int header_count, const char **headers, const char **header_names);
int hiprtcCompileProgram(struct program *program, int option_count, const char **options);
int hiprtcGetProgramLogSize(struct program *program, size_t *bytes);
int hiprtcGetProgramLog(struct program *program, char *text);
int hiprtcGetCodeSize(struct program *program, size_t *bytes);
int hiprtcGetCode(struct program *program, char *code);
int hiprtcDestroyProgram(struct program **program);

int hiprtcCreateProgram(struct program **out, const char *source, const char *name,
                        int header_count, const char **headers, const char **header_names)
{
    (void)name;
    *out = calloc(1, sizeof **out);
    if (!*out || header_count || headers || header_names)
        return INVALID;
    (*out)->source = strdup(source);
    return 0;
}

/* The source of unit_check.cu, or of cast.cu with what both sides share in front. */
static bool is_check(const struct program *program)
{
    return strstr(program->source, K3_UNIT_CHECK_NAME) != NULL;
}

static bool is_cast(const struct program *program)
{
    const char *ask = strstr(program->source, "struct k3_cast_ask {");
    return ask && strstr(ask, "__global__");
}

int hiprtcCompileProgram(struct program *program, int option_count, const char **options)
{
    if (option_count && !options)
        return INVALID;
    if (getenv("FAKE_HIPRTC_BROKEN") || (!is_check(program) && !is_cast(program)))
        return COMPILATION;
    return 0;
}

int hiprtcGetProgramLogSize(struct program *program, size_t *bytes)
{
    (void)program;
    *bytes = sizeof log_text;
    return 0;
}

int hiprtcGetProgramLog(struct program *program, char *text)
{
    (void)program;
    memcpy(text, log_text, sizeof log_text);
    return 0;
}

int hiprtcGetCodeSize(struct program *program, size_t *bytes)
{
    *bytes = is_check(program) ? (size_t)(fake_check_end - fake_check)
                               : (size_t)(fake_cast_end - fake_cast);
    return 0;
}

int hiprtcGetCode(struct program *program, char *code)
{
    size_t bytes = 0;
    (void)hiprtcGetCodeSize(program, &bytes);
    memcpy(code, is_check(program) ? fake_check : fake_cast, bytes);
    return 0;
}

int hiprtcDestroyProgram(struct program **program)
{
    free((*program)->source);
    free(*program);
    *program = NULL;
    return 0;
}
