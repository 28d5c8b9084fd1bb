/* Sums over windows, the batch side by side: included by tiles.h's users, per dtype and level.
 *
 * Rows of x and out are contiguous along the batch. Sums: results lie in groups of n_r rows; result r
 * of a group is the sum over its pairs (row of x, row of the weights) of weight[row][r] * x[row].
 * Forward a group is a position and its maps, backward a position and its channels: no window is
 * ever laid out. Gradients: out[m, k] = the sum over positions p and the batch of y[p, m] x[p, k].
 *
 * Tiles of WR results by two vectors of the batch are in registers. Sums are float along one window,
 * and double from FLUSH positions to the next of a gradient.
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
#define FLUSH 32
#define GT 4

static inline VEC_T K(part_load)(const REAL *p, int64_t n) {
#if LEVEL == 2 && IS_F32
    return (VEC_T)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif LEVEL == 2
    return (VEC_T)_mm512_maskz_loadu_pd((__mmask8)((1u << n) - 1), p);
#else
    return K(vec_part)(p, n);
#endif
}
static inline void K(part_store)(REAL *p, VEC_T v, int64_t n) { memcpy(p, &v, n * sizeof(REAL)); }

/* n_r (a constant) results by n_v (a constant) vectors, the last of them of `some` numbers. */
static inline __attribute__((always_inline)) void K(window_tile)(
    const int n_r, const int n_v, const REAL *x, int64_t ldx, const int32_t *src,
    const int32_t *row, int64_t n, const REAL *w, int64_t ldw, REAL *out, int64_t ldo, int64_t some) {
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
            if (v == n_v - 1 && some < LN) K(part_store)(out + r * ldo + v * LN, sum[r][v], some);
            else K(vec_store)(out + r * ldo + v * LN, sum[r][v]);
        }
}

#define WINDOW_TILE(R, V) \
    K(window_tile)(R, V, x + b, g->ldx, src, row, n, w + r, ldw, out + r * g->ldo + b, g->ldo, some)
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

/* n_m by n_k (constants) gradients: of maps m and places k of the window. */
static inline __attribute__((always_inline)) void K(gradient_tile)(
    const int n_m, const int n_k, const conv_t *g, int64_t rows, int64_t m, int64_t k) {
    VEC_T sum[GT][GT];
    double total[GT][GT] = {{0}};
    const REAL *y = (const REAL *)g->w, *x = (const REAL *)g->x, *zero = (const REAL *)g->packed;
    const int64_t n_maps = g->n_r, n_each = g->n_rows;
    for (int i = 0; i < n_m; i++)
        for (int j = 0; j < n_k; j++) sum[i][j] = (VEC_T){0};
    const int64_t last = rows - rows % LN, some = rows - last;
    for (int64_t p = 0; p < g->n_groups; p++) {
        const REAL *ys[GT], *xs[GT];
        int any = 0;
        for (int i = 0; i < n_m; i++) ys[i] = y + (p * n_maps + m + i) * g->ldw;
        for (int j = 0; j < n_k; j++) {
            const int32_t at = g->src[p * n_each + k + j];
            any |= at >= 0;
            xs[j] = at < 0 ? zero : x + at * g->ldx;
        }
        if (any) {
            for (int64_t b = 0; b < last; b += LN) {
                VEC_T ya[GT];
                for (int i = 0; i < n_m; i++) ya[i] = K(vec_load)(ys[i] + b);
                for (int j = 0; j < n_k; j++) {
                    const VEC_T xa = K(vec_load)(xs[j] + b);
                    for (int i = 0; i < n_m; i++) sum[i][j] += ya[i] * xa;
                }
            }
            if (some) {
                VEC_T ya[GT];
                for (int i = 0; i < n_m; i++) ya[i] = K(part_load)(ys[i] + last, some);
                for (int j = 0; j < n_k; j++) {
                    const VEC_T xa = K(part_load)(xs[j] + last, some);
                    for (int i = 0; i < n_m; i++) sum[i][j] += ya[i] * xa;
                }
            }
        }
        if (p % FLUSH == FLUSH - 1 || p == g->n_groups - 1)
            for (int i = 0; i < n_m; i++)
                for (int j = 0; j < n_k; j++) {
                    REAL lanes[TILE_BYTES / sizeof(REAL)];
                    double each = 0.0;
                    K(vec_store)(lanes, sum[i][j]);
                    for (int64_t l = 0; l < LN; l++) each += (double)lanes[l];
                    total[i][j] += each;
                    sum[i][j] = (VEC_T){0};
                }
    }
    for (int i = 0; i < n_m; i++)
        for (int j = 0; j < n_k; j++)
            ((REAL *)g->out)[(m + i) * n_each + k + j] = (REAL)total[i][j];
}

#define GRADIENT_ROWS(M) \
    case M: switch (n_k) { \
        case 1: K(gradient_tile)(M, 1, g, rows, m, k); break; \
        case 2: K(gradient_tile)(M, 2, g, rows, m, k); break; \
        case 3: K(gradient_tile)(M, 3, g, rows, m, k); break; \
        default: K(gradient_tile)(M, 4, g, rows, m, k); } break;

/* Tiles lo to hi of the maps by places. */
static void K(window_gradients)(const conv_t *g, int64_t rows, int64_t lo, int64_t hi) {
    const int64_t across = (g->n_rows + GT - 1) / GT;
    for (int64_t tile = lo; tile < hi; tile++) {
        const int64_t m = tile / across * GT, k = tile % across * GT;
        const int64_t n_m = g->n_r - m < GT ? g->n_r - m : GT;
        const int64_t n_k = g->n_rows - k < GT ? g->n_rows - k : GT;
        switch (n_m) { GRADIENT_ROWS(1) GRADIENT_ROWS(2) GRADIENT_ROWS(3) GRADIENT_ROWS(4) }
    }
}

/* phase 0: pack; 1: compute. */
static void K(windows)(const tape_t *t, const conv_t *g, int phase, int tid, int nt) {
    const int64_t rows = resolve(t, g->rows);
    int64_t lo, hi;
    if (phase == 0) {
        if (g->kind == 0) { share(g->n_rows, tid, nt, 1, &lo, &hi); K(window_pack)(g, lo, hi); }
    } else if (g->kind == 0) {
        share(g->n_groups, tid, nt, 1, &lo, &hi);
        K(window_sums)(g, rows, lo, hi);
    } else {
        share((g->n_r + GT - 1) / GT * ((g->n_rows + GT - 1) / GT), tid, nt, 1, &lo, &hi);
        K(window_gradients)(g, rows, lo, hi);
    }
}

#undef TILE_BYTES
#undef WR
#undef LN
#undef VEC_T
#undef FLUSH
#undef GT
#undef WINDOW_TILE
#undef WINDOW_ROWS
#undef GRADIENT_ROWS
