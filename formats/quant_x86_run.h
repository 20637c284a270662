/* The part of a form of k3_quant_ops for x86 that is the same text for each register width.
 * Included once by such a file, behind its TARGET, INLINE, struct sums with load_sums and
 * store_sums, struct by with by_of, and group. */

INLINE void run_all(enum k3_quant_kind kind, const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    struct sums s;
    load_sums(lanes, &s);
    const float *scale = run->scale;
    for (size_t i = 0; i < run->count; i += run->group_cols, scale++) {
        size_t end = run->count - i < run->group_cols ? run->count : i + run->group_cols;
        float inverse = k3_quant_inverse(*scale);
        /* A constant in each of the two, so that each loop is compiled for it. */
        if (inverse > 0)
            group(kind, run, i, end, by_of(*scale, inverse, true), &s);
        else
            group(kind, run, i, end, by_of(*scale, inverse, false), &s);
    }
    store_sums(&s, lanes);
}

TARGET static void e2m1(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    run_all(K3_QK_E2M1, run, lanes);
}

TARGET static void e4m3(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    if (run->is_bf16)
        run_all(K3_QK_E4M3_BF16, run, lanes);
    else
        run_all(K3_QK_E4M3, run, lanes);
}

TARGET static void int8(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    run_all(K3_QK_INT8, run, lanes);
}

TARGET static void int4(const struct k3_qrun *run, struct k3_qlanes *lanes)
{
    run_all(K3_QK_INT4, run, lanes);
}

/* The largest of sixteen words below 0x8000; vphminposuw finds the smallest of eight. */
INLINE uint16_t most_of(__m256i v)
{
    __m128i m = _mm_max_epu16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_minpos_epu16(_mm_xor_si128(m, _mm_set1_epi16(-1)));
    return (uint16_t)~_mm_cvtsi128_si32(m);
}
