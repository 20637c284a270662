/* What an x86 CPU has and its operating system keeps, by the bits of the manuals of Intel and AMD:
 * for the files that choose among forms of a loop.  Pure, any thread. */
#ifndef K3_CPU_X86_H
#define K3_CPU_X86_H

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdbool.h>
#include <stdint.h>

#define K3_ECX1_SSSE3    (1u << 9)
#define K3_ECX1_SSE41    (1u << 19)
#define K3_ECX1_OSXSAVE  (1u << 27)
#define K3_ECX1_AVX      (1u << 28)
#define K3_EBX7_AVX2     (1u << 5)
#define K3_EBX7_AVX512F  (1u << 16)
#define K3_EBX7_AVX512DQ (1u << 17)
#define K3_EBX7_SHA      (1u << 29)
#define K3_EBX7_AVX512BW (1u << 30)
#define K3_EBX7_AVX512VL (1u << 31)
#define K3_XCR0_AVX      0x6u  /* the system keeps XMM and YMM registers */
#define K3_XCR0_AVX512   0xe6u /* and mask and all ZMM registers */

struct k3_cpu_x86 {
    uint32_t ecx1, ebx7;
    uint32_t xcr0; /* 0 where the system keeps none */
};

static inline bool k3_cpu_has(uint32_t flags, uint32_t wanted)
{
    return (flags & wanted) == wanted;
}

/* All zeros where the CPU does not say. */
static inline struct k3_cpu_x86 k3_cpu_x86(void)
{
    struct k3_cpu_x86 cpu = {0, 0, 0};
    uint32_t eax, ebx, ecx1, edx, ebx7, ecx7, high;
    if (!__get_cpuid(1, &eax, &ebx, &ecx1, &edx) ||
        !__get_cpuid_count(7, 0, &eax, &ebx7, &ecx7, &edx))
        return cpu;
    cpu.ecx1 = ecx1;
    cpu.ebx7 = ebx7;
    if (k3_cpu_has(ecx1, K3_ECX1_OSXSAVE)) {
        __asm__ volatile("xgetbv" : "=a"(cpu.xcr0), "=d"(high) : "c"(0));
        (void)high;
    }
    return cpu;
}

#endif

#endif
