/* Code and sources for GPUs, embedded: shared by the files that carry some. */
#ifndef K3_GPU_EMBED_H
#define K3_GPU_EMBED_H

/* The Makefile names the folders; no name: that compiler was not there.  Sources are always there:
 * their folder here is for analysers alone. */
#ifdef K3_CUDA_CODE
#define CUDA_BYTES(name) ".incbin \"" K3_CUDA_CODE name ".fatbin\"\n"
#else
#define CUDA_BYTES(name) ""
#endif
#ifdef K3_HIP_CODE
#define HIP_BYTES(name) ".incbin \"" K3_HIP_CODE name ".hsaco\"\n"
#else
#define HIP_BYTES(name) ""
#endif
#ifndef K3_GPU_SOURCES
#define K3_GPU_SOURCES "runtime/"
#endif
#define SOURCE_BYTES(file) ".incbin \"" K3_GPU_SOURCES file "\"\n"

/* 64: an image of code is read in place by the drivers, which want it aligned. */
#define EMBED(name, bytes)                                                                         \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            ".global " #name "_begin\n"                                                            \
            ".hidden " #name "_begin\n" #name "_begin:\n" bytes ".global " #name "_end\n"          \
            ".hidden " #name "_end\n" #name "_end:\n"                                              \
            ".byte 0\n"                                                                            \
            ".popsection\n");                                                                      \
    extern const char name##_begin[];                                                              \
    extern const char name##_end[]

#endif
