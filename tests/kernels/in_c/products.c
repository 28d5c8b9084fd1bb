/* Products of float32 as a processor with AVX-512 makes them, for test_avx512_in_c.py, and sums of
 * the same messages one after the other, which have the same bits. */
#include <stdlib.h>

#define LEVEL 2
#define WIDE WIDE_IN_C
#include "wide.h"
#define THIN_UPDATE update
#include "thin.h"
#include "live.h"

static char *scratch_of(void) {
    char *made = aligned_alloc(64, (KERNEL_BYTES + 63) / 64 * 64);
    if (!made) abort();
    return made;
}

void product(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn, float *c,
             int64_t m, int64_t n, int64_t k, float alpha, float beta, int zeros) {
    char *scratch = scratch_of();
    wide_product(a, am, ak, b, bk, bn, c, n, m, n, k, alpha, beta, zeros, scratch);
    free(scratch);
}

/* v = beta v + alpha d' x; w += v, where w is there. */
void gradient(const float *d, const float *x, int64_t m, int64_t n, int64_t k, float alpha, float beta,
              float *v, float *w, int zeros) {
    char *scratch = scratch_of();
    update(d, 1, m, x, n, 1, 0, m, n, k, alpha, beta, v, n, w, n, NULL, NULL, NULL, NULL, zeros,
           scratch);
    free(scratch);
}

void live(const float *a, const float *weights, const int32_t *rows, const int32_t *cols,
          const uint16_t *bits, int backward, float *c, int64_t m, int64_t n, int64_t k, int64_t width,
          float beta) {
    const live_weights_t w = {weights, width, rows, cols, bits};
    char *scratch = scratch_of();
    live_product(a, k, 1, &w, backward, c, n, 1, m, 0, n, k, beta, scratch);
    free(scratch);
}

/* `depth` messages at a time. */
void in_order(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn, float *c,
              int64_t m, int64_t n, int64_t k, float alpha, float beta, int64_t depth) {
    const int64_t parts = k > 0 ? (k + depth - 1) / depth : 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t part = 0; part < parts; part++) {
                const float keep = part ? 1.0f : beta;
                float sum = 0.0f, *to = c + i * n + j;
                for (int64_t kk = k * part / parts; kk < k * (part + 1) / parts; kk++)
                    sum = fmaf(a[i * am + kk * ak], b[kk * bk + j * bn], sum);
                sum = alpha * (sum + 0.0f);
                *to = keep != 0 ? fmaf(keep, *to, sum) : sum;
            }
}
const int64_t WIDE_DEPTH = WIDE_K;
