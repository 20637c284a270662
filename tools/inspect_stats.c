/* Purpose: read the values of a tensor: extent, mean, deviation, zeros, NaN, infinities, histogram.
 * Owns: one buffer of bytes and one of decoded values.
 * Threads: any, each with its own range.
 * Errors: K3_EIO, K3_ENOMEM, K3_ECANCELED; K3_EUNSUPPORTED for complex numbers.
 * Invariant: every element is counted once: finite + NaN + infinite = count; extent, mean and
 * deviation are of the finite ones. */
#include "bytes.h"
#include "fs.h"
#include "inspect.h"
#include "progress.h"
#include "stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMENTS 65536u     /* 512 KiB of doubles: stays in L2 between the two passes */
#define STREAM_BYTES   (1u << 20) /* of a histogram alone */

struct stats {
    uint64_t count, zero_count, nan_count, inf_count, finite_count;
    double min, max, mean;
    double square_sum; /* of the distances to the mean */
    bool seen[256];    /* byte types: which values occur */
};

/* ---- decoding ---- */

/* sign, exponent and mantissa fields to a value; exponent 0 is subnormal. */
static double from_fields(bool negative, int exponent, int bias, uint32_t mantissa,
                          int mantissa_bits)
{
    double fraction = ldexp((double)mantissa, -mantissa_bits);
    double value = exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
    return negative ? -value : value;
}

static double from_f16(uint32_t v)
{
    int exponent = (int)(v >> 10 & 31);
    uint32_t mantissa = v & 1023;
    if (exponent == 31)
        return mantissa ? (double)NAN : v >> 15 ? -(double)INFINITY : (double)INFINITY;
    return from_fields(v >> 15, exponent, 15, mantissa, 10);
}

static double from_f32_bits(uint32_t v)
{
    float f;
    memcpy(&f, &v, sizeof f);
    return (double)f;
}

/* One-byte types (OCP 8-bit formats, and the FNUZ variants with one NaN and no minus zero). */
static double from_byte(uint8_t dtype, uint8_t v)
{
    switch (dtype) {
    case K3_I8:
        return v < 128 ? v : v - 256;
    case K3_F8_E4M3:
        return (v & 127) == 127 ? (double)NAN : from_fields(v >> 7, v >> 3 & 15, 7, v & 7, 3);
    case K3_F8_E5M2:
        if ((v >> 2 & 31) == 31)
            return v & 3 ? (double)NAN : v >> 7 ? -(double)INFINITY : (double)INFINITY;
        return from_fields(v >> 7, v >> 2 & 31, 15, v & 3, 2);
    case K3_F8_E8M0:
        return v == 255 ? (double)NAN : ldexp(1, v - 127);
    case K3_F8_E4M3FNUZ:
        return v == 128 ? (double)NAN : from_fields(v >> 7, v >> 3 & 15, 8, v & 7, 3);
    case K3_F8_E5M2FNUZ:
        return v == 128 ? (double)NAN : from_fields(v >> 7, v >> 2 & 31, 16, v & 3, 2);
    default:
        return v; /* BOOL, U8, and sub-byte types: the packed bytes */
    }
}

static uint32_t load_le16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static double from_wide(uint8_t dtype, const uint8_t *p)
{
    double f64;
    uint64_t bits;
    switch (dtype) {
    case K3_I16:
        return (int16_t)load_le16(p);
    case K3_U16:
        return load_le16(p);
    case K3_F16:
        return from_f16(load_le16(p));
    case K3_BF16:
        return from_f32_bits(load_le16(p) << 16);
    case K3_I32:
        return (int32_t)k3_load_le32(p);
    case K3_U32:
        return k3_load_le32(p);
    case K3_F32:
        return from_f32_bits(k3_load_le32(p));
    case K3_I64:
        return (double)(int64_t)k3_load_le64(p);
    case K3_U64:
        return (double)k3_load_le64(p);
    default:
        bits = k3_load_le64(p);
        memcpy(&f64, &bits, sizeof f64);
        return f64;
    }
}

/* ---- counting ---- */

/* Add decoded values: two passes over a chunk, then the pairwise rule that joins means and square
 * sums without loss (Chan et al.). */
static void add_values(struct stats *stats, const double *values, size_t count)
{
    double sum = 0, square_sum = 0;
    uint64_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        double v = values[i];
        if (isnan(v)) {
            stats->nan_count++;
        } else if (isinf(v)) {
            stats->inf_count++;
        } else {
            if (stats->finite_count + finite == 0 || v < stats->min)
                stats->min = v;
            if (stats->finite_count + finite == 0 || v > stats->max)
                stats->max = v;
            stats->zero_count += v == 0;
            sum += v;
            finite++;
        }
    }
    stats->count += count;
    if (!finite)
        return;
    double mean = sum / (double)finite;
    for (size_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            square_sum += (values[i] - mean) * (values[i] - mean);
    double old = (double)stats->finite_count, all = old + (double)finite;
    double distance = mean - stats->mean;
    stats->mean += distance * (double)finite / all;
    stats->square_sum += square_sum + distance * distance * old * (double)finite / all;
    stats->finite_count += finite;
}

static int read_values(const struct k3_stats_range *range, struct k3_hist *hist,
                       struct stats *stats, struct k3_err *err)
{
    const unsigned bits = k3_dtype_bits(range->dtype);
    const size_t width = bits < 8 ? 1 : bits / 8; /* sub-byte types: their packed bytes */
    uint8_t *data = malloc((size_t)CHUNK_ELEMENTS * width);
    double *values = malloc(CHUNK_ELEMENTS * sizeof *values);
    int rc = data && values ? 0 : k3_fail(err, K3_ENOMEM, "no memory for statistics");
    uint64_t total = range->bytes / width;
    for (uint64_t at = 0; at < total && !rc; at += CHUNK_ELEMENTS) {
        size_t n = total - at < CHUNK_ELEMENTS ? (size_t)(total - at) : CHUNK_ELEMENTS;
        if (k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request");
        else
            rc = k3_file_read(range->fd, range->name, data, n * width, range->offset + at * width,
                              err);
        if (!rc && hist)
            k3_hist_add(hist, data, n * width);
        for (size_t i = 0; i < n && !rc; i++) {
            values[i] = width == 1 ? from_byte(range->dtype, data[i])
                                   : from_wide(range->dtype, data + i * width);
            if (width == 1)
                stats->seen[data[i]] = true;
        }
        if (!rc)
            add_values(stats, values, n);
    }
    free(data);
    free(values);
    return rc;
}

/* Newton's rule from a start within a factor of two: eight steps reach the last bit.  libm would be
 * one more library to link for this one number. */
static double square_root(double x)
{
    int exponent;
    if (!(x > 0) || isinf(x))
        return x;
    (void)frexp(x, &exponent);
    double root = ldexp(1, exponent / 2);
    for (int i = 0; i < 8; i++)
        root = (root + x / root) / 2;
    return root;
}

static bool add_number(struct k3_doc *row, const char *name, double value)
{
    /* A sum of doubles near the largest one overflows: JSON has no word for that. */
    return isfinite(value) ? k3_doc_add_double(row, name, value)
                           : k3_doc_add_string(row, name, "overflow");
}

int k3_inspect_hist(const struct k3_stats_range *range, struct k3_hist *hist,
                    struct k3_progress *progress, struct k3_err *err)
{
    uint8_t *data = malloc(STREAM_BYTES);
    int rc = data ? 0 : k3_fail(err, K3_ENOMEM, "no memory for statistics");
    for (uint64_t at = 0; at < range->bytes && !rc; at += STREAM_BYTES) {
        size_t n = range->bytes - at < STREAM_BYTES ? (size_t)(range->bytes - at) : STREAM_BYTES;
        if (k3_stop_requested())
            rc = k3_fail(err, K3_ECANCELED, "stopped on request");
        else
            rc = k3_file_read(range->fd, range->name, data, n, range->offset + at, err);
        if (!rc)
            k3_hist_add(hist, data, n);
        if (!rc && progress)
            k3_progress_add(progress, n);
    }
    free(data);
    return rc;
}

int k3_inspect_stats(const struct k3_stats_range *range, struct k3_hist *hist, struct k3_doc *row,
                     struct k3_err *err)
{
    const unsigned bits = k3_dtype_bits(range->dtype);
    struct stats stats;
    memset(&stats, 0, sizeof stats);
    if (range->dtype == K3_C64)
        return k3_fail(err, K3_EUNSUPPORTED, "no statistics of complex numbers");
    int rc = read_values(range, hist, &stats, err);
    if (rc)
        return rc;
    bool added = k3_doc_add_integer(row, bits < 8 ? "packed_count" : "count", stats.count) &&
                 k3_doc_add_integer(row, "zeros", stats.zero_count) &&
                 k3_doc_add_integer(row, "nan", stats.nan_count) &&
                 k3_doc_add_integer(row, "inf", stats.inf_count);
    if (added && stats.finite_count)
        added = add_number(row, "min", stats.min) && add_number(row, "max", stats.max) &&
                add_number(row, "mean", stats.mean) &&
                add_number(row, "std", square_root(stats.square_sum / (double)stats.finite_count));
    uint64_t distinct = 0;
    for (unsigned v = 0; v < 256; v++)
        distinct += stats.seen[v];
    if (added && bits <= 8)
        added = k3_doc_add_integer(row, "distinct_values", distinct);
    return added ? 0 : k3_fail(err, K3_ENOMEM, "no memory for statistics");
}
