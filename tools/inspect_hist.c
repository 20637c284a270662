/* Purpose: count what tensors hold, by sign and power of two, or by code.
 * Owns: the histograms.
 * Threads: any, each with its own.
 * Errors: K3_ENOMEM.
 * Invariant: every element is in one bin: the bins of a histogram add up to its count. */
#include "inspect_hist.h"

#include "bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bins in the order in which they are shown. */
enum {
    BIN_ZERO,
    BIN_SUBNORMAL,
    BIN_FIRST, /* of the lowest power, or of code 1 */
    BIN_INF = K3_HIST_BIN_COUNT - 2,
    BIN_NAN
};
#define EXPONENT_MIN (-1022) /* normal numbers of FP64; FP64 ends at 1023, so all bins suffice */
_Static_assert(BIN_FIRST + 1023 - EXPONENT_MIN < BIN_INF, "a bin for each power of two of FP64");

/* How a dtype spells its numbers. */
enum spelling {
    INTEGER,    /* two's complement, or none where it has no sign */
    IEEE,       /* the largest exponent is for infinite and NaN */
    ALL_ONES,   /* only the last code is NaN (E4M3) */
    MINUS_ZERO, /* only what would be -0 is NaN (FNUZ) */
    EXPONENTS,  /* E8M0: nothing else; 255 is NaN */
    NOT_DECODED
};

struct form {
    uint8_t spelling, exponent_bits, fraction_bits;
    int16_t bias;
    bool is_signed; /* integers */
};

static const struct form forms[K3_DTYPE_COUNT] = {
    [K3_BOOL] = {.spelling = INTEGER},
    [K3_F4] = {.spelling = NOT_DECODED},
    [K3_F6_E2M3] = {.spelling = NOT_DECODED},
    [K3_F6_E3M2] = {.spelling = NOT_DECODED},
    [K3_U8] = {.spelling = INTEGER},
    [K3_I8] = {.spelling = INTEGER, .is_signed = true},
    [K3_F8_E5M2] = {IEEE, 5, 2, 15, false},
    [K3_F8_E4M3] = {ALL_ONES, 4, 3, 7, false},
    [K3_F8_E8M0] = {.spelling = EXPONENTS},
    [K3_F8_E4M3FNUZ] = {MINUS_ZERO, 4, 3, 8, false},
    [K3_F8_E5M2FNUZ] = {MINUS_ZERO, 5, 2, 16, false},
    [K3_I16] = {.spelling = INTEGER, .is_signed = true},
    [K3_U16] = {.spelling = INTEGER},
    [K3_F16] = {IEEE, 5, 10, 15, false},
    [K3_BF16] = {IEEE, 8, 7, 127, false},
    [K3_I32] = {.spelling = INTEGER, .is_signed = true},
    [K3_U32] = {.spelling = INTEGER},
    [K3_F32] = {IEEE, 8, 23, 127, false},
    [K3_C64] = {.spelling = NOT_DECODED},
    [K3_F64] = {IEEE, 11, 52, 1023, false},
    [K3_I64] = {.spelling = INTEGER, .is_signed = true},
    [K3_U64] = {.spelling = INTEGER},
};

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), s = strlen(suffix);
    return n >= s && !strcmp(name + n - s, suffix);
}

enum k3_hist_kind k3_hist_kind_of(const char *name, bool is_view, enum k3_dtype dtype)
{
    if (dtype == K3_F4)
        return K3_HIST_E2M1;
    if (forms[dtype].spelling == NOT_DECODED || ends_with(name, "_shape"))
        return K3_HIST_NONE;
    if (ends_with(name, "_global") || ends_with(name, "_global_scale"))
        return K3_HIST_GLOBALS;
    if (dtype == K3_F8_E8M0)
        return K3_HIST_E8M0;
    if (ends_with(name, "_scale") || ends_with(name, "_scale_inv"))
        return dtype == K3_U8 ? K3_HIST_E8M0 : K3_HIST_SCALES;
    /* Views have no suffix for codes, but nothing else in a set has these dtypes. */
    const bool is_packed = is_view || ends_with(name, "_packed");
    if (is_packed && dtype == K3_U8)
        return K3_HIST_E2M1;
    return is_packed && dtype == K3_I32 ? K3_HIST_INT4 : K3_HIST_VALUES;
}

/* ---- bins of one element ---- */

/* A pattern of 4 bits. */
static unsigned bin_of_code(enum k3_hist_kind kind, unsigned code, unsigned *negative)
{
    if (kind == K3_HIST_E2M1) {
        *negative = code >> 3;
        return code & 7 ? BIN_FIRST + (code & 7) - 1 : BIN_ZERO;
    }
    *negative = code < 8;
    unsigned magnitude = code < 8 ? 8 - code : code - 8;
    return magnitude ? BIN_FIRST + magnitude - 1 : BIN_ZERO;
}

static unsigned bin_of_exponent(int exponent)
{
    return (unsigned)(BIN_FIRST + exponent - EXPONENT_MIN);
}

static unsigned bin_of_float(const struct form *form, uint64_t bits, unsigned *negative)
{
    const unsigned magnitude_bits = (unsigned)form->exponent_bits + form->fraction_bits;
    const uint64_t largest = (UINT64_C(1) << magnitude_bits) - 1, magnitude = bits & largest;
    const uint64_t exponent = magnitude >> form->fraction_bits;
    const uint64_t exponent_max = (UINT64_C(1) << form->exponent_bits) - 1;
    *negative = (unsigned)(bits >> magnitude_bits & 1);
    if (magnitude == 0)
        return form->spelling == MINUS_ZERO && *negative ? BIN_NAN : BIN_ZERO;
    if (exponent == 0)
        return BIN_SUBNORMAL;
    if (form->spelling == IEEE && exponent == exponent_max)
        return magnitude == exponent_max << form->fraction_bits ? BIN_INF : BIN_NAN;
    if (form->spelling == ALL_ONES && magnitude == largest)
        return BIN_NAN;
    return bin_of_exponent((int)exponent - form->bias);
}

static unsigned bin_of_integer(uint64_t bits, unsigned width, bool is_signed, unsigned *negative)
{
    *negative = is_signed && bits >> (width - 1) & 1;
    if (*negative)
        bits = width < 64 ? (UINT64_C(1) << width) - bits : -bits;
    return bits ? bin_of_exponent(63 - __builtin_clzll(bits)) : BIN_ZERO;
}

static unsigned bin_of(const struct k3_hist *hist, uint64_t bits, unsigned *negative)
{
    const struct form *form = &forms[hist->dtype];
    *negative = 0;
    if (hist->kind == K3_HIST_E8M0 || form->spelling == EXPONENTS)
        return bits == 255 ? BIN_NAN : bin_of_exponent((int)bits - 127);
    if (form->spelling == INTEGER)
        return bin_of_integer(bits, k3_dtype_bits((enum k3_dtype)hist->dtype), form->is_signed,
                              negative);
    return bin_of_float(form, bits, negative);
}

/* ---- counting ---- */

static bool is_of_codes(const struct k3_hist *hist)
{
    return hist->kind == K3_HIST_E2M1 || hist->kind == K3_HIST_INT4;
}

/* Bytes of one element; codes are counted by the byte. */
static unsigned width_of(const struct k3_hist *hist)
{
    return is_of_codes(hist) ? 1 : k3_dtype_bits((enum k3_dtype)hist->dtype) / 8;
}

int k3_hists_open(struct k3_hists *hists, enum k3_hist_kind kind, enum k3_dtype dtype,
                  struct k3_hist **out, struct k3_err *err)
{
    for (uint32_t i = 0; i < hists->count; i++)
        if (hists->list[i].kind == kind && hists->list[i].dtype == dtype) {
            hists->list[i].tensor_count++;
            *out = &hists->list[i];
            return 0;
        }
    struct k3_hist *grown = realloc(hists->list, (hists->count + 1) * sizeof *grown);
    if (!grown)
        return k3_fail(err, K3_ENOMEM, "no memory for a histogram");
    hists->list = grown;
    struct k3_hist *hist = &grown[hists->count];
    memset(hist, 0, sizeof *hist);
    hist->kind = (uint8_t)kind;
    hist->dtype = (uint8_t)dtype;
    if (width_of(hist) <= 2) {
        hist->patterns = calloc((size_t)1 << 8 * width_of(hist), sizeof *hist->patterns);
        if (!hist->patterns)
            return k3_fail(err, K3_ENOMEM, "no memory for a histogram");
    }
    hists->count++;
    hist->tensor_count = 1;
    *out = hist;
    return 0;
}

void k3_hist_add(struct k3_hist *hist, const uint8_t *data, size_t bytes)
{
    const unsigned width = width_of(hist);
    hist->element_count += is_of_codes(hist) ? bytes * 2 : bytes / width;
    if (width == 1) {
        for (size_t i = 0; i < bytes; i++)
            hist->patterns[data[i]]++;
        return;
    }
    if (width == 2) {
        for (size_t i = 0; i + 2 <= bytes; i += 2)
            hist->patterns[(unsigned)data[i] | (unsigned)data[i + 1] << 8]++;
        return;
    }
    for (size_t i = 0; i + width <= bytes; i += width) {
        unsigned negative;
        unsigned bin = bin_of(hist, width == 4 ? k3_load_le32(data + i) : k3_load_le64(data + i),
                              &negative);
        hist->bin[bin][negative]++;
    }
}

/* What was counted by pattern goes to the bins. */
static void fold(struct k3_hist *hist)
{
    const uint32_t count = hist->patterns ? 1u << 8 * width_of(hist) : 0;
    for (uint32_t bits = 0; bits < count; bits++) {
        const uint64_t n = hist->patterns[bits];
        unsigned negative, bin;
        hist->patterns[bits] = 0;
        if (!n)
            continue;
        if (!is_of_codes(hist)) {
            bin = bin_of(hist, bits, &negative);
            hist->bin[bin][negative] += n;
            continue;
        }
        for (unsigned shift = 0; shift < 8; shift += 4) {
            bin = bin_of_code((enum k3_hist_kind)hist->kind, bits >> shift & 15, &negative);
            hist->bin[bin][negative] += n;
        }
    }
}

/* ---- showing ---- */

static const char *label_of(const struct k3_hist *hist, unsigned bin, char text[16])
{
    static const char *const e2m1[] = {"0.5", "1", "1.5", "2", "3", "4", "6"};
    if (bin == BIN_ZERO)
        return "0";
    if (bin == BIN_SUBNORMAL)
        return "subnormal";
    if (bin == BIN_INF || bin == BIN_NAN)
        return bin == BIN_INF ? "inf" : "nan";
    if (hist->kind == K3_HIST_E2M1)
        return e2m1[bin - BIN_FIRST];
    snprintf(text, 16, hist->kind == K3_HIST_INT4 ? "%d" : "2^%d",
             hist->kind == K3_HIST_INT4 ? (int)(bin - BIN_FIRST + 1)
                                        : (int)(bin - BIN_FIRST) + EXPONENT_MIN);
    return text;
}

static const char *title_of(const struct k3_hist *hist, char text[48])
{
    static const char *const kinds[K3_HIST_KIND_COUNT] = {
        [K3_HIST_VALUES] = "values",         [K3_HIST_SCALES] = "scales",
        [K3_HIST_GLOBALS] = "global scales", [K3_HIST_E8M0] = "E8M0 scales",
        [K3_HIST_E2M1] = "E2M1 codes",       [K3_HIST_INT4] = "INT4 codes"};
    if (hist->kind >= K3_HIST_E8M0)
        return kinds[hist->kind];
    snprintf(text, 48, "%s %s", k3_dtype_name((enum k3_dtype)hist->dtype), kinds[hist->kind]);
    return text;
}

static bool show(struct k3_hist *hist, struct k3_doc *array)
{
    char text[48];
    struct k3_doc *row = k3_doc_add_object(array, NULL), *bins = NULL;
    fold(hist);
    bool added = row && k3_doc_add_string(row, "of", title_of(hist, text)) &&
                 k3_doc_add_integer(row, "tensors", hist->tensor_count) &&
                 k3_doc_add_integer(row, "count", hist->element_count) &&
                 (bins = k3_doc_add_array(row, "bins"));
    for (unsigned bin = 0; bin < K3_HIST_BIN_COUNT && added; bin++) {
        const uint64_t *count = hist->bin[bin];
        if (!count[0] && !count[1])
            continue;
        struct k3_doc *line = k3_doc_add_object(bins, NULL);
        added = line && k3_doc_add_string(line, "bin", label_of(hist, bin, text)) &&
                k3_doc_add_integer(line, "negative", count[1]) &&
                k3_doc_add_integer(line, "positive", count[0]);
    }
    return added;
}

bool k3_hists_show(struct k3_hists *hists, struct k3_doc *root)
{
    struct k3_doc *array = k3_doc_add_array(root, "histograms");
    bool added = array != NULL;
    for (uint32_t i = 0; i < hists->count && added; i++)
        added = show(&hists->list[i], array);
    return added;
}

void k3_hists_close(struct k3_hists *hists)
{
    for (uint32_t i = 0; i < hists->count; i++)
        free(hists->list[i].patterns);
    free(hists->list);
    memset(hists, 0, sizeof *hists);
}
