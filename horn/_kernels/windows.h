/* Sums over windows, the batch side by side: included by tiles.h's users, per dtype and level.
 *
 * Rows of x and out are contiguous along the batch. Sums: results lie in groups of n_r rows; result r
 * of a group is the sum over its pairs (row of x, row of the weights) of weight[row][r] * x[row].
 * Forward a group is a position and its maps, backward a position and its channels: no window is
 * ever laid out. Gradients: out[m, k] = the sum over positions p and the batch of y[p, m] x[p, k].
 *
 * Tiles of WR results by two vectors are in registers. Sums are float along one window, or one
 * position's batch of a gradient, and double beyond.
 */
#if LEVEL == 2
#define TILE_BYTES 64
#define WR 8
#elif LEVEL == 1
#define TILE_BYTES 32
#define WR 4
#else
#define TILE_BYTES 16
#define WR 4
#endif
#define LN ((int64_t)(TILE_BYTES / sizeof(REAL)))
#define VEC_T K(vec_t)

static inline VEC_T K(part_load)(const REAL *p, int64_t n) {
#if LEVEL == 2 && IS_F32
    return (VEC_T)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif LEVEL == 2
    return (VEC_T)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#else
    return K(vec_part)(p, n);
#endif
}
static inline void K(part_store)(REAL *p, VEC_T v, int64_t n) {
#if LEVEL == 2 && IS_F32
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#elif LEVEL == 2
    _mm512_mask_storeu_pd(p, (__mmask8)((1u << n) - 1), (__m512d)v);
#else
    memcpy(p, &v, n * sizeof(REAL));
#endif
}

/* What becomes of n sums before they are kept: their row's bias is added; what is less than 0 is 0;
 * what has a gate that is not more than 0 is 0. */
static inline __attribute__((always_inline)) VEC_T K(vec_end)(
    int end, VEC_T v, REAL bias, const REAL *gate, int64_t n) {
    if (end & END_BIAS) v += K(vec_of)(bias);
    if (end & END_RELU) v = K(vec_pick)((K(bits_t))(v <= (VEC_T){0}), (VEC_T){0}, v);
    if (end & END_GATE) {
        const VEC_T z = n < LN ? K(part_load)(gate, n) : K(vec_load)(gate);
        v = K(vec_pick)((K(bits_t))(z > (VEC_T){0}), v, (VEC_T){0});
    }
    return v;
}

/* n_r (a constant) results by n_v (a constant) vectors, the last of them of `some` numbers. */
static inline __attribute__((always_inline)) void K(window_tile)(
    const int n_r, const int n_v, const REAL *x, int64_t ldx, const int32_t *src,
    const int32_t *row, int64_t n, const REAL *w, int64_t ldw, REAL *out, int64_t ldo, int64_t some,
    int end, const REAL *bias, const REAL *gate, int64_t ldz) {
    VEC_T sum[WR][2];
    for (int r = 0; r < n_r; r++)
        for (int v = 0; v < n_v; v++) sum[r][v] = (VEC_T){0};
    for (int64_t j = 0; j < n; j++) {
        const REAL *from = x + src[j] * ldx, *by = w + row[j] * ldw;
        VEC_T xs[2];
        for (int v = 0; v < n_v; v++)
            xs[v] = v == n_v - 1 && some < LN ? K(part_load)(from + v * LN, some)
                                              : K(vec_load)(from + v * LN);
        for (int r = 0; r < n_r; r++) {
            const VEC_T each = K(vec_of)(by[r]);
            for (int v = 0; v < n_v; v++) sum[r][v] += each * xs[v];
        }
    }
    for (int r = 0; r < n_r; r++)
        for (int v = 0; v < n_v; v++) {
            const int64_t count = v == n_v - 1 ? some : LN;
            const VEC_T kept = K(vec_end)(end, sum[r][v], end & END_BIAS ? bias[r] : 0,
                                          gate + r * ldz + v * LN, count);
            if (count < LN) K(part_store)(out + r * ldo + v * LN, kept, count);
            else K(vec_store)(out + r * ldo + v * LN, kept);
        }
}

#define WINDOW_TILE(R, V) \
    K(window_tile)(R, V, x + b, g->ldx, src, row, n, w + r, ldw, out + r * g->ldo + b, g->ldo, some, \
                   g->end, bias + r, gate + r * g->ldz + b, g->ldz)
#define WINDOW_ROWS(R) \
    case R: \
        if (whole) { const int64_t some = LN; WINDOW_TILE(R, 2); } \
        else if (two) { WINDOW_TILE(R, 2); } \
        else { WINDOW_TILE(R, 1); } \
        break;

static void K(window_sums)(const conv_t *g, int64_t rows, int64_t lo, int64_t hi) {
    const REAL *x = (const REAL *)g->x, *w = (const REAL *)g->packed;
    const int64_t ldw = g->n_r;
    for (int64_t k = lo; k < hi; k++) {
        const int32_t *src = g->src + g->ptr[k], *row = g->row + g->ptr[k];
        const int64_t n = g->ptr[k + 1] - g->ptr[k];
        REAL *out = (REAL *)g->out + k * g->n_r * g->ldo;
        const REAL *bias = (const REAL *)g->bias + k * g->n_r;
        const REAL *gate = (const REAL *)g->gate + k * g->n_r * g->ldz;
        for (int64_t b = 0; b < rows; b += 2 * LN) {
            const int64_t left = rows - b;
            const int whole = left >= 2 * LN, two = left > LN;
            const int64_t some = whole ? LN : two ? left - LN : left;
            for (int64_t r = 0; r < g->n_r; r += WR)
                switch (g->n_r - r < WR ? g->n_r - r : WR) {
                WINDOW_ROWS(1) WINDOW_ROWS(2) WINDOW_ROWS(3) WINDOW_ROWS(4)
#if WR == 8
                WINDOW_ROWS(5) WINDOW_ROWS(6) WINDOW_ROWS(7) WINDOW_ROWS(8)
#endif
                }
        }
    }
}

/* The weights, a row for each number of g->row. */
static void K(window_pack)(const conv_t *g, int64_t lo, int64_t hi) {
    const REAL *w = (const REAL *)g->w;
    REAL *to = (REAL *)g->packed;
    for (int64_t k = lo; k < hi; k++)
        for (int64_t r = 0; r < g->n_r; r++) to[k * g->n_r + r] = w[g->base[k] + r * g->step];
}

/* A window's rows of the batch, the places side by side: place k of position p is row src[p][k] of x,
 * which `turned` has along its columns. Places that are neighbours there are copied together. */
static void K(window_lay)(const conv_t *g, int64_t p, int64_t rows, int64_t lo, int64_t hi,
                          REAL *to, int64_t ldt) {
    const REAL *turned = (const REAL *)g->turned;
    const int32_t *src = g->src + p * g->n_rows;
    for (int64_t k = lo; k < hi;) {
        int64_t end = k + 1;
        if (src[k] < 0) while (end < hi && src[end] < 0) end++;
        else while (end < hi && src[end] == src[end - 1] + 1) end++;
        REAL *out = to + (k - lo);
        const int64_t size = (end - k) * (int64_t)sizeof(REAL);
        if (src[k] < 0)
            for (int64_t b = 0; b < rows; b++) memset(out + b * ldt, 0, size);
        else {
            const REAL *from = turned + src[k];
            for (int64_t b = 0; b < rows; b++) memcpy(out + b * ldt, from + b * g->n_x, size);
        }
        k = end;
    }
}

/* n_m (a constant) maps by two vectors of places: the sum over rows, added to totals. */
static inline __attribute__((always_inline)) void K(gradient_tile)(
    const int n_m, const REAL *const *ys, int64_t rows, const REAL *laid, int64_t ldt,
    double *total, int64_t ld) {
    VEC_T sum[WR][2];
    for (int i = 0; i < n_m; i++) sum[i][0] = sum[i][1] = (VEC_T){0};
    for (int64_t b = 0; b < rows; b++) {
        const VEC_T x0 = K(vec_load)(laid + b * ldt), x1 = K(vec_load)(laid + b * ldt + LN);
        for (int i = 0; i < n_m; i++) {
            const VEC_T y = K(vec_of)(ys[i][b]);
            sum[i][0] += y * x0; sum[i][1] += y * x1;
        }
    }
    for (int i = 0; i < n_m; i++) {
        REAL lanes[2 * TILE_BYTES / sizeof(REAL)];
        K(vec_store)(lanes, sum[i][0]); K(vec_store)(lanes + LN, sum[i][1]);
        for (int64_t l = 0; l < 2 * LN; l++) total[i * ld + l] += (double)lanes[l];
    }
}

#define GRADIENT_ROWS(M) \
    case M: K(gradient_tile)(M, ys, rows, laid + k, ldt, total + m * ldt + k, ldt); break;

/* Places lo to hi, for all maps. */
static void K(window_gradients)(const conv_t *g, int64_t rows, int64_t lo, int64_t hi, int tid) {
    const REAL *y = (const REAL *)g->w;
    const int64_t n = hi - lo, ldt = (n + 2 * LN - 1) / (2 * LN) * 2 * LN;
    REAL *laid = (REAL *)(g->room + tid * g->room_bytes);
    double *total = (double *)(g->room + tid * g->room_bytes + g->laid_bytes);
    if (n <= 0) return;
    memset(total, 0, g->n_r * ldt * sizeof(double));
    for (int64_t b = 0; b < rows; b++) memset(laid + b * ldt + n, 0, (ldt - n) * sizeof(REAL));
    for (int64_t p = 0; p < g->n_groups; p++) {
        K(window_lay)(g, p, rows, lo, hi, laid, ldt);
        for (int64_t k = 0; k < n; k += 2 * LN)
            for (int64_t m = 0; m < g->n_r; m += WR) {
                const int64_t left = g->n_r - m < WR ? g->n_r - m : WR;
                const REAL *ys[WR];
                for (int64_t i = 0; i < left; i++) ys[i] = y + (p * g->n_r + m + i) * g->ldw;
                switch (left) {
                GRADIENT_ROWS(1) GRADIENT_ROWS(2) GRADIENT_ROWS(3) GRADIENT_ROWS(4)
#if WR == 8
                GRADIENT_ROWS(5) GRADIENT_ROWS(6) GRADIENT_ROWS(7) GRADIENT_ROWS(8)
#endif
                }
            }
    }
    for (int64_t m = 0; m < g->n_r; m++)
        for (int64_t k = 0; k < n; k++)
            ((REAL *)g->out)[m * g->n_rows + lo + k] = (REAL)total[m * ldt + k];
}

/* Rows lo to hi of x, as columns. */
static void K(window_turn)(const conv_t *g, int64_t rows, int64_t lo, int64_t hi) {
    REAL *turned = (REAL *)g->turned;
    for (int64_t first = lo; first < hi; first += 16)
        for (int64_t b = 0; b < rows; b++)
            for (int64_t i = first; i < (first + 16 < hi ? first + 16 : hi); i++)
                turned[b * g->n_x + i] = ((const REAL *)g->x)[i * g->ldx + b];
}

/* phase 0: pack; 1: compute. */
static void K(windows)(const tape_t *t, const conv_t *g, int phase, int tid, int nt) {
    const int64_t rows = resolve(t, g->rows);
    int64_t lo, hi;
    if (phase == 0) {
        if (g->kind == 0) {
            share(g->n_rows, tid, nt, 1, &lo, &hi);
            K(window_pack)(g, lo, hi);
        } else {
            share(g->n_x, tid, nt, 16, &lo, &hi);
            K(window_turn)(g, rows, lo, hi);
        }
    } else if (g->kind == 0) {
        share(g->n_groups, tid, nt, 1, &lo, &hi);
        K(window_sums)(g, rows, lo, hi);
    } else {
        share(g->n_rows, tid, nt, 2 * LN, &lo, &hi);
        K(window_gradients)(g, rows, lo, hi, tid);
    }
}

#include "pools.h"

#undef TILE_BYTES
#undef WR
#undef LN
#undef VEC_T
#undef WINDOW_TILE
#undef WINDOW_ROWS
#undef GRADIENT_ROWS
