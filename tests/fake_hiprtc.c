/* Purpose: hipRTC of the fake driver: takes the kernel's source and gives what its loader knows.
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
#ifdef FAKE_CODE_PATH
__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        "fake_code_begin: .incbin \"" FAKE_CODE_PATH "\"\n"
        "fake_code_end: .byte 0\n"
        ".popsection\n");
extern const char fake_code_begin[] __attribute__((visibility("hidden")));
extern const char fake_code_end[] __attribute__((visibility("hidden")));
#define CODE       fake_code_begin
#define CODE_BYTES ((size_t)(fake_code_end - fake_code_begin))
#else
static const char code_text[] = FAKE_HIP_MAGIC " " K3_UNIT_CHECK_NAME;
#define CODE       code_text
#define CODE_BYTES sizeof code_text
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

int hiprtcCompileProgram(struct program *program, int option_count, const char **options)
{
    if (option_count && !options)
        return INVALID;
    return getenv("FAKE_HIPRTC_BROKEN") || !strstr(program->source, K3_UNIT_CHECK_NAME)
               ? COMPILATION
               : 0;
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
    (void)program;
    *bytes = CODE_BYTES;
    return 0;
}

int hiprtcGetCode(struct program *program, char *code)
{
    (void)program;
    memcpy(code, CODE, CODE_BYTES);
    return 0;
}

int hiprtcDestroyProgram(struct program **program)
{
    free((*program)->source);
    free(*program);
    *program = NULL;
    return 0;
}
