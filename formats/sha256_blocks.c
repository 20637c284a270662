/* Purpose: SHA-256 of 4096-byte blocks by the fastest form that this CPU runs.
 * Owns: the choice of a form, and the constants of SHA-256.
 * Threads: any; what the CPU runs is found once and kept in an atomic, and two threads that both
 * look find the same.
 * Errors: none.
 * Invariants: all forms give the same digests; a form runs only where CPU and operating system
 * have what it needs. */
#include "sha256_blocks.h"

#include "cpu_x86.h"
#include "sha256_constants.h"

#include <assert.h>
#include <stdatomic.h>

#if K3_SHA256_ARMV8_BUILT
#include <sys/auxv.h>
#endif

/* FIPS 180-4, 4.2.2 and 5.3.3; padding: the schedule of 0x80, zeros, 32768 bits, plus round[]. */
const struct k3_sha256_constants k3_sha256_constants = {
    .initial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                0x5be0cd19},
    .round = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
              0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
              0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
              0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
              0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
              0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
              0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
              0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
              0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
              0xc67178f2},
    .padding = {0xc28a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
                0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
                0x9bdc06a7, 0xc19c7174, 0x649b69c1, 0x3fbe47a6, 0x0fe1edc6, 0x240cc3cc, 0x4fe9346f,
                0x5fb484b2, 0x61b9bf1e, 0xf6f9e0e2, 0x904651d2, 0xcf776683, 0xb071aacd, 0x45598de9,
                0x6e024795, 0xe1a53a4c, 0x01579c54, 0x7ed2a5d2, 0x5543dff8, 0x24306163, 0xcbe96064,
                0x088b74dd, 0x8cef495f, 0x27644e60, 0xfa4494c7, 0xc85ad905, 0xae229301, 0x3cc6aca8,
                0xced0f30e, 0x0054346d, 0xaa185a78, 0xbf2f214a, 0xc070f8f5, 0x2bfa9c81, 0x2ee7c2f3,
                0x060f5920, 0x19f02ca9, 0xf4d1cc5c, 0x4368bd9b, 0xc154267a, 0xec10f2ef, 0xf0bf5abd,
                0xb1561710, 0xcc85b5a6, 0x55e9155c, 0xeb7ba3e0, 0x0f037e93, 0x2ae3e945, 0xa2affabf,
                0x694563d1},
};

#define FORM_BIT(form) (1u << (form))
#define KNOWN          FORM_BIT(K3_SHA256_FORM_COUNT) /* set once the CPU was asked; never 0 then */

#define MIXED_PAYS FORM_BIT(K3_SHA256_FORM_COUNT + 1)

static atomic_uint runs; /* FORM_BIT of each form that runs here, KNOWN, MIXED_PAYS */
static atomic_int forced = K3_SHA256_FORM_COUNT; /* a form, or none */

#if defined(__x86_64__)

/* The mixed form pays where the SHA unit begins two rounds in each cycle, as a Zen 4 does; with one
 * that needs two cycles for them, which is what tables of instructions say of CPUs of Intel, its
 * rounds alone take 64 cycles a step, no fewer than AVX-512 in all. */
static bool mixed_pays(void)
{
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == 0x68747541u && edx == 0x69746e65u &&
           ecx == 0x444d4163u; /* AuthenticAMD */
}

static unsigned cpu_forms(void)
{
    const struct k3_cpu_x86 cpu = k3_cpu_x86();
    unsigned forms = 0;
    if (k3_cpu_has(cpu.ebx7, K3_EBX7_SHA) && k3_cpu_has(cpu.ecx1, K3_ECX1_SSSE3 | K3_ECX1_SSE41))
        forms |= FORM_BIT(K3_SHA256_SHANI);
    if (k3_cpu_has(cpu.ebx7, K3_EBX7_AVX512F | K3_EBX7_AVX512BW) &&
        k3_cpu_has(cpu.xcr0, K3_XCR0_AVX512)) {
        forms |= FORM_BIT(K3_SHA256_AVX512);
        if (k3_cpu_has(cpu.ebx7, K3_EBX7_AVX512VL) && (forms & FORM_BIT(K3_SHA256_SHANI)))
            forms |= FORM_BIT(K3_SHA256_AVX512_SHA);
    }
    return forms;
}

#else

static bool mixed_pays(void)
{
    return false;
}

static unsigned cpu_forms(void)
{
#if K3_SHA256_ARMV8_BUILT
    if (getauxval(AT_HWCAP) & HWCAP_SHA2)
        return FORM_BIT(K3_SHA256_ARMV8);
#endif
    return 0;
}

#endif

static unsigned known_forms(void)
{
    unsigned forms = atomic_load_explicit(&runs, memory_order_relaxed);
    if (forms == 0) {
        forms = cpu_forms() | FORM_BIT(K3_SHA256_LIBCRYPTO) | KNOWN;
        if (mixed_pays())
            forms |= MIXED_PAYS;
        atomic_store_explicit(&runs, forms, memory_order_relaxed);
    }
    return forms;
}

bool k3_sha256_form_runs(enum k3_sha256_form form)
{
    return form >= 0 && form < K3_SHA256_FORM_COUNT && (known_forms() & FORM_BIT(form)) != 0;
}

const char *k3_sha256_form_name(enum k3_sha256_form form)
{
    static const char *const name[K3_SHA256_FORM_COUNT] = {
        [K3_SHA256_AVX512_SHA] = "AVX-512 with SHA-NI",
        [K3_SHA256_AVX512] = "AVX-512",
        [K3_SHA256_SHANI] = "SHA-NI",
        [K3_SHA256_ARMV8] = "ARMv8 SHA2",
        [K3_SHA256_LIBCRYPTO] = "libcrypto",
    };
    assert(form >= 0 && form < K3_SHA256_FORM_COUNT);
    return name[form];
}

void k3_sha256_force(enum k3_sha256_form form)
{
    assert(form == K3_SHA256_FORM_COUNT || k3_sha256_form_runs(form));
    atomic_store_explicit(&forced, (int)form, memory_order_relaxed);
}

enum k3_sha256_form k3_sha256_form(void)
{
    int form = atomic_load_explicit(&forced, memory_order_relaxed);
    if (form == K3_SHA256_FORM_COUNT)
        for (form = known_forms() & MIXED_PAYS ? K3_SHA256_AVX512_SHA : K3_SHA256_AVX512;
             !k3_sha256_form_runs((enum k3_sha256_form)form);)
            form++; /* libcrypto, the last, always runs */
    return (enum k3_sha256_form)form;
}

void k3_sha256_blocks(struct k3_sha256 *sha, const void *blocks, size_t block_count,
                      uint8_t *digests)
{
    const uint8_t *at = blocks;
#if defined(__x86_64__)
    enum k3_sha256_form form = k3_sha256_form();
    if (form == K3_SHA256_AVX512_SHA || form == K3_SHA256_AVX512) {
        size_t whole_count = block_count - block_count % K3_AVX512_LANE_COUNT;
        if (form == K3_SHA256_AVX512)
            k3_sha256_blocks_avx512(at, whole_count, digests);
        else
            k3_sha256_blocks_avx512_sha(at, whole_count, digests);
        at += whole_count * K3_BLOCK_BYTES;
        digests += whole_count * K3_DIGEST_BYTES;
        block_count -= whole_count;
        if (k3_sha256_form_runs(K3_SHA256_SHANI))
            form = K3_SHA256_SHANI;
    }
    if (form == K3_SHA256_SHANI) {
        k3_sha256_blocks_shani(at, block_count, digests);
        return;
    }
#elif K3_SHA256_ARMV8_BUILT
    if (k3_sha256_form() == K3_SHA256_ARMV8) {
        k3_sha256_blocks_armv8(at, block_count, digests);
        return;
    }
#endif
    for (; block_count > 0; block_count--) {
        k3_sha256_of(sha, at, K3_BLOCK_BYTES, digests);
        at += K3_BLOCK_BYTES;
        digests += K3_DIGEST_BYTES;
    }
}

void k3_sha256_blocks_and_stream(struct k3_sha256 *sha, struct k3_sha256 *flat, const void *blocks,
                                 size_t block_count, uint8_t *digests)
{
    assert(sha != flat);
#if defined(__x86_64__)
    /* A stream of its own is what takes the time, whatever form takes the blocks: so the blocks go
     * beside it in the SHA unit, also where AVX-512 would be faster on blocks alone. */
    uint32_t words[K3_SHA256_WORD_COUNT];
    int form = atomic_load_explicit(&forced, memory_order_relaxed);
    if ((form == K3_SHA256_SHANI || form == K3_SHA256_FORM_COUNT) &&
        k3_sha256_form_runs(K3_SHA256_SHANI) && k3_sha256_borrow(flat, words)) {
        k3_sha256_pair_shani(words, blocks, block_count, digests);
        k3_sha256_give(flat, words, block_count * K3_BLOCK_BYTES);
        return;
    }
#endif
    k3_sha256_update(flat, blocks, block_count * K3_BLOCK_BYTES);
    k3_sha256_blocks(sha, blocks, block_count, digests);
}
