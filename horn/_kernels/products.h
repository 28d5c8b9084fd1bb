/* Products of float32 for AVX2 and AVX-512 (wide.h), the gradient of a thin batch with its update
 * (thin.h), products with live weights for AVX-512 (live.h), and their scratch sizes. */
#ifndef HORN_PRODUCTS_H
#define HORN_PRODUCTS_H

#include "tape.h"

/* Columns of a panel, of AVX-512 (AVX2: half as many), and floats of the panels of a product. */
#define WIDE_PANEL 32
#define WIDE_PANELS(n, k) (((n) + WIDE_PANEL - 1) / WIDE_PANEL * WIDE_PANEL * (k))
/* The operand that may have many zeros, which are skipped. */
enum {ZEROS_NONE, ZEROS_A, ZEROS_B};

#ifdef HORN_X86
#define THIN_K 256
#define THIN_TILES_BYTES (256 * 1024)
#define LIVE_K 128                          /* messages per panel: 16 KiB */
#define LIVE_SUMS_BYTES (256 * 1024)        /* samples x neurons that wait for the next messages */
#define LIVE_BYTES (THIN_TILES_BYTES + LIVE_SUMS_BYTES + 32 * LIVE_K * 4 + 512)
#define WIDE_K 384                          /* messages at a time */
#define WIDE_ROWS 240                       /* rows of a that stay in the second-level cache */
#define WIDE_COLS 1024                      /* columns of b that are packed once for all rows */
#define TURNED_COLS 512                     /* columns of a part of a transposed product */
#define LOW_ROWS 4                          /* of the lowest tiles, but for the last of a block */
/* Of events (events.h): places in tiles and in rows, and numbers in rows. */
#define WIDE_EVENTS ((WIDE_ROWS / LOW_ROWS + 1 + 3 * WIDE_ROWS) * (WIDE_K + 16) * 2)
#define WIDE_BYTES (((WIDE_ROWS + WIDE_COLS) * WIDE_K + WIDE_ROWS * TURNED_COLS) * 4 + WIDE_EVENTS \
                    + 1024)
#define KERNEL_BYTES (WIDE_BYTES > LIVE_BYTES ? WIDE_BYTES : LIVE_BYTES)

typedef struct {
    const float *w; int64_t ldw;
    const int32_t *rows, *cols;             /* NULL: all of them */
    const uint16_t *bits;                   /* the same as cols */
} live_weights_t;

#pragma GCC visibility push(hidden)
/* Products of one a with several b: columns are counted in panels, from the first's on. */
typedef struct {
    const float *panels; float *c; int64_t ldc, n; float alpha, beta;
} wide_part_t;
typedef struct {
    int32_t panel;              /* columns of one */
    /* c = beta c + alpha a b: a (m, k), b (k, n) by strides, one of each 1; c (m, n) row-major. With
     * beta 0 what c held does not matter. */
    void (*product)(const float *a, int64_t am, int64_t ak, const float *b, int64_t bk, int64_t bn,
                    float *c, int64_t ldc, int64_t m, int64_t n, int64_t k, float alpha, float beta,
                    int zeros, char *scratch);
    /* The same in two steps, for a b of many products: pack its panels, with room for a number
     * before them; then compute with panels p0 to p1 of the n columns, to the same bits. */
    void (*pack)(const float *b, int64_t bk, int64_t bn, int64_t n, int64_t k, float *panels);
    void (*packed)(const float *a, int64_t am, int64_t ak, int64_t m, int64_t k,
                   const wide_part_t *parts, int n_parts, int64_t p0, int64_t p1, int zeros,
                   char *scratch);
} wide_t;
extern const wide_t WIDE_AVX2, WIDE_AVX512;

/* Rows [r0, r1) of v and w. d (m, k) and x (k, n) by strides; v and w row-major.
 *
 * With `rows` and `cols` (AVX-512; ascending; `bits` says the same as cols) d and x belong to live
 * neurons only, and v and w are whole: row r and column c of the product go to rows[r], cols[c], and
 * the others are not touched. `others` (only where all are live): its parts are added to the
 * product. `zeros`: x may have many zeros, which are skipped. */
typedef void thin_update_t(const float *d, int64_t dm, int64_t dk, const float *x, int64_t xk,
                           int64_t xn, int64_t r0, int64_t r1, int64_t n, int64_t k, float alpha,
                           float beta, float *v, int64_t ldv, float *w, int64_t ldw,
                           const int32_t *rows, const int32_t *cols, const uint16_t *bits,
                           const gemm_t *others, int zeros, char *scratch);
thin_update_t thin_update_avx2, thin_update_avx512;

/* Columns [c0, c1) of c (m, n). a (m, k) by strides; of c one stride is 1. */
void live_product(const float *a, int64_t am, int64_t ak, const live_weights_t *l, int backward,
                  float *c, int64_t cm, int64_t cj, int64_t m, int64_t c0, int64_t c1, int64_t k,
                  float beta, char *scratch);
#pragma GCC visibility pop
#else
#define KERNEL_BYTES 64
#endif
#endif
