/* Sums over windows, the batch side by side: included by strips.h, per dtype and level.
 *
 * Rows of x and out are contiguous along the batch. Sums: results lie in groups of n_r rows; result r
 * of a group is the sum over its pairs (row of x, row of the weights) of weight[row][r] * x[row], or
 * of (x[row] - weight[row][r])**2. Pairs are told as runs of rows that follow each other in both.
 * Forward a group is a position and its maps, backward a position and its channels: no window is
 * ever laid out, and positions inside, whose windows differ only in where they begin, have one
 * list. Gradients: out[m, k] = the sum over positions p and the batch of y[p, m] x[p, k]. Where maps
 * receive some of the channels, a position has several groups, and gradients several parts.
 *
 * Tiles of at most WR results by two vectors are in registers. Sums are float along one window, or
 * WINDOW_DEEP samples of a gradient, and double beyond.
 */
#define WR (LEVEL == 2 ? 12 : LEVEL == 1 ? 6 : 4)

#define N_WIDE (IS_F32 ? 2 : 1)         /* vectors of double that are one vector */
static inline VEC_T K(vec_narrow)(const K(doubles_t) v[N_WIDE]) {
#if IS_F32
    K(half_t) halves[N_WIDE]; VEC_T found;
    for (int k = 0; k < N_WIDE; k++) halves[k] = __builtin_convertvector(v[k], K(half_t));
    memcpy(&found, halves, sizeof found);
    return found;
#else
    return v[0];
#endif
}

/* The operations on n sums before they are stored: their row's bias is added; numbers below 0
 * become 0; so do numbers whose gate is not above 0. */
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

/* to[c, r] = from[r, c] */
static void K(window_turn)(const REAL *from, int64_t ldf, REAL *to, int64_t ldt, int64_t n_rows,
                           int64_t n_cols) {
#if LEVEL == 2 && IS_F32
    for (int64_t c = 0; c < n_cols; c += 16)
        for (int64_t r = 0; r < n_rows; r += 16) {
            const int64_t nr = n_rows - r < 16 ? n_rows - r : 16, nc = n_cols - c < 16 ? n_cols - c : 16;
            const __mmask16 has = (__mmask16)((1u << nc) - 1), keeps = (__mmask16)((1u << nr) - 1);
            __m512 rows[16], some[16];
            for (int i = 0; i < 16; i++)
                rows[i] = i < nr ? _mm512_maskz_loadu_ps(has, from + (r + i) * ldf + c)
                                 : _mm512_setzero_ps();
            transpose16_of(rows, some);
            if (nr == 16 && nc == 16)
                for (int i = 0; i < 16; i++) _mm512_storeu_ps(to + (c + i) * ldt + r, rows[i]);
            else
                for (int i = 0; i < nc; i++)
                    _mm512_mask_storeu_ps(to + (c + i) * ldt + r, keeps, rows[i]);
        }
#else
    for (int64_t r = 0; r < n_rows; r += 16)
        for (int64_t c = 0; c < n_cols; c++)
            for (int64_t i = r; i < (r + 16 < n_rows ? r + 16 : n_rows); i++)
                to[c * ldt + i] = from[i * ldf + c];
#endif
}

/* The first result of tile t of n, of n_r results: tiles are as equal as they can be. */
static inline int64_t K(tile_at)(int64_t n_r, int64_t t) {
    return n_r * t / ((n_r + WR - 1) / WR);
}

/* Sums are in registers only where loops over them are unrolled. */
#define UNROLL _Pragma("GCC unroll 16")

/* ---- sums ---- */
/* A tile's n runs of rows of x (and of the `other` group's x), and the arrays that go with them.
 * `load` numbers of the last vector are read, `keep` are stored. */
typedef struct {
    const REAL *x, *other, *w; const int32_t *src, *row, *length; int64_t ldx, n, load, keep;
} K(window_t);

/* n_r (a constant) results by n_v (a constant) vectors: one, two that are side by side, or, if it
 * `is_pair`, one each of two groups, of which the other has out, bias and gate further on.
 * of_squares, a constant, is that of conv_t. */
static inline __attribute__((always_inline)) void K(window_tile)(
    const int of_squares, const int n_r, const int n_v, const int is_pair, const K(window_t) *s,
    const conv_t *g, int64_t at, int64_t at_other, int64_t b) {
    VEC_T sum[WR][2];
    const REAL *w = s->w;
    const int64_t load = s->load, ldx = s->ldx, n = s->n, apart = ldx * g->apart;
    UNROLL
    for (int r = 0; r < n_r; r++)
        UNROLL
        for (int v = 0; v < n_v; v++) sum[r][v] = (VEC_T){0};
    for (int64_t j = 0; j < n; j++) {
        const REAL *by = w + s->row[j] * n_r, *x = s->x + s->src[j] * ldx;
        const REAL *other = is_pair ? s->other + s->src[j] * ldx : x + LN;
        for (int32_t k = s->length[j]; k > 0; k--, by += n_r, x += apart, other += apart) {
            VEC_T xs[2];
            for (int v = 0; v < n_v; v++)
                xs[v] = (is_pair || v == n_v - 1) && load < LN ? K(part_load)(v ? other : x, load)
                                                               : K(vec_load)(v ? other : x);
            UNROLL
            for (int r = 0; r < n_r; r++) {
                const VEC_T each = K(vec_of)(by[r]);
                UNROLL
                for (int v = 0; v < n_v; v++) {
                    const VEC_T off = xs[v] - each;
                    sum[r][v] += of_squares ? off * off : each * xs[v];
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < n_r; r++)
        UNROLL
        for (int v = 0; v < n_v; v++) {
            const int64_t row = (is_pair && v ? at_other : at) + r;
            const int64_t from = b + (is_pair ? 0 : v * LN);
            const int64_t count = is_pair || v == n_v - 1 ? s->keep : LN;
            const VEC_T kept = K(vec_end)(g->end, sum[r][v],
                                          g->end & END_BIAS ? ((const REAL *)g->bias)[row] : 0,
                                          (const REAL *)g->gate + row * g->ldz + from, count);
            REAL *out = (REAL *)g->out + row * g->ldo + from;
            if (count < LN) K(part_store)(out, kept, count);
            else K(vec_store)(out, kept);
        }
}

#define WINDOW_ROWS(R) \
    case R: \
        if (n_v == 2) K(window_tile)(of_squares, R, 2, 0, s, g, at, 0, b); \
        else if (at_other < 0) K(window_tile)(of_squares, R, 1, 0, s, g, at, 0, b); \
        else K(window_tile)(of_squares, R, 2, 1, s, g, at, at_other, b); \
        break;

static inline __attribute__((always_inline)) void K(window_results)(
    const int of_squares, int64_t n_r, int n_v, const K(window_t) *s, const conv_t *g, int64_t at,
    int64_t at_other, int64_t b) {
    switch (n_r) {
    WINDOW_ROWS(1) WINDOW_ROWS(2) WINDOW_ROWS(3) WINDOW_ROWS(4)
#if WR > 4
    WINDOW_ROWS(5) WINDOW_ROWS(6)
#endif
#if WR > 6
    WINDOW_ROWS(7) WINDOW_ROWS(8) WINDOW_ROWS(9) WINDOW_ROWS(10) WINDOW_ROWS(11) WINDOW_ROWS(12)
#endif
    }
}

static void K(window_part)(int64_t n_r, int n_v, const K(window_t) *s, const conv_t *g, int64_t at,
                           int64_t at_other, int64_t b) {
    if (g->of_squares) K(window_results)(1, n_r, n_v, s, g, at, at_other, b);
    else K(window_results)(0, n_r, n_v, s, g, at, at_other, b);
}

/* Units whose rows of x stay in the second-level cache for all tiles. */
#define NEAR_UNITS 8

/* Two vectors of the batch at a time, by the weights of a tile at a time. Where only one vector is
 * left, two groups with the same weights at a time. */
static void K(window_sums)(const tape_t *t, const conv_t *g, int64_t rows, int64_t lo, int64_t hi) {
    const int64_t n_tiles = (g->n_r + WR - 1) / WR;
    const int is_packed = g->ldx > 2 * LN;
    for (int64_t b = 0; b < rows; b += 2 * LN) {
        const int64_t left = rows - b;
        const int n_v = left > LN ? 2 : 1;
        K(window_t) s = {.ldx = g->ldx};
        const REAL *x = (const REAL *)g->x;
        s.keep = left >= 2 * LN ? LN : left - (n_v - 1) * LN;
        s.load = is_packed ? LN : s.keep;
        if (is_packed) { x = (const REAL *)t->panel + b * g->n_x; s.ldx = n_v * LN; }
        for (int64_t at = lo; at < hi; at += NEAR_UNITS)
        for (int64_t tile = 0; tile < n_tiles; tile++) {
            const int64_t r = K(tile_at)(g->n_r, tile), n_r = K(tile_at)(g->n_r, tile + 1) - r;
            s.w = (const REAL *)g->packed + r * g->n_rows;
            for (int64_t u = at; u < (at + NEAR_UNITS < hi ? at + NEAR_UNITS : hi); u++) {
                const int64_t k = g->unit[2 * u], other = g->unit[2 * u + 1];
                const int64_t from = g->ptr[g->which[k]];
                s.n = g->ptr[g->which[k] + 1] - from;
                s.src = g->src + from; s.row = g->row + from; s.length = g->length + from;
                s.x = x + g->first[k] * s.ldx;
                s.other = other < 0 ? NULL : x + g->first[other] * s.ldx;
                K(window_part)(n_r, n_v, &s, g, k * g->n_r + r, other < 0 ? -1 : other * g->n_r + r, b);
                if (n_v == 2 && other >= 0) {
                    s.x = s.other;
                    K(window_part)(n_r, n_v, &s, g, other * g->n_r + r, -1, b);
                }
            }
        }
    }
}

/* Pack the weights tile by tile: n_rows rows of a tile's results, in the order of g->row's numbers. */
static void K(window_pack)(const conv_t *g, int64_t lo, int64_t hi) {
    const REAL *w = (const REAL *)g->w;
    const int64_t n_tiles = (g->n_r + WR - 1) / WR;
    for (int64_t tile = 0; tile < n_tiles; tile++) {
        const int64_t from = K(tile_at)(g->n_r, tile), n_r = K(tile_at)(g->n_r, tile + 1) - from;
        REAL *to = (REAL *)g->packed + from * g->n_rows;
        for (int64_t k = lo; k < hi; k++)
            for (int64_t r = 0; r < n_r; r++)
                to[k * n_r + r] = w[g->base[k] + (from + r) * g->step];
    }
}

/* Rows lo to hi of x, two vectors of the batch at a time. */
static void K(window_panel)(const tape_t *t, const conv_t *g, int64_t rows, int64_t lo, int64_t hi) {
    for (int64_t b = 0; b < rows; b += 2 * LN) {
        const int64_t left = rows - b < 2 * LN ? rows - b : 2 * LN, across = left > LN ? 2 * LN : LN;
        REAL *to = (REAL *)t->panel + b * g->n_x;
        for (int64_t k = lo; k < hi; k++) {
            const REAL *from = (const REAL *)g->x + k * g->ldx + b;
            if (left == 2 * LN) {
                K(vec_store)(to + k * across, K(vec_load)(from));
                K(vec_store)(to + k * across + LN, K(vec_load)(from + LN));
                continue;
            }
            for (int64_t i = 0; i < left; i++) to[k * across + i] = from[i];
            for (int64_t i = left; i < across; i++) to[k * across + i] = 0;
        }
    }
}

/* ---- gradients ---- */
/* n_k (a constant) places from k by n_v (a constant) vectors of maps: the sum over n_p positions from p
 * and n_b samples from b, added to totals. flows has a row of maps for each of these. */
static inline __attribute__((always_inline)) void K(gradient_tile)(
    const int n_k, const int n_v, const conv_t *g, const REAL *from_x, const REAL *zeros, int64_t p,
    int64_t n_p, int64_t b, int64_t n_b, int64_t k, const REAL *flows, double *total) {
    VEC_T sum[WR][2];
    UNROLL
    for (int i = 0; i < n_k; i++) sum[i][0] = sum[i][1] = (VEC_T){0};
    const REAL *x[WR] = {0};
    int64_t inside[WR] = {0}, first = 0;
    int32_t list = -1;          /* that and where it begins, of the position before */
    for (; n_p > 0; n_p--, p++) {
        const int64_t moved = (g->first[p] - first) * g->ldx;
        first = g->first[p];
        if (g->which[p] == list) {
            UNROLL
            for (int i = 0; i < n_k; i++) x[i] += moved & inside[i];
        } else {
            list = g->which[p];
            const int32_t *src = g->src + list * g->n_rows + k;
            const REAL *from = from_x + first * g->ldx + b;
            UNROLL
            for (int i = 0; i < n_k; i++) {
                inside[i] = src[i] < 0 ? 0 : -1;
                x[i] = src[i] < 0 ? zeros : from + src[i] * g->ldx;
            }
        }
        for (int64_t j = 0; j < n_b; j++, flows += n_v * LN) {
            VEC_T y[2];
            y[0] = K(vec_load)(flows);
            if (n_v == 2) y[1] = K(vec_load)(flows + LN);
            UNROLL
            for (int i = 0; i < n_k; i++) {
                const VEC_T each = K(vec_of)(x[i][j]);
                UNROLL
                for (int v = 0; v < n_v; v++) sum[i][v] += each * y[v];
            }
        }
    }
    UNROLL
    for (int i = 0; i < n_k; i++)
        UNROLL
        for (int v = 0; v < n_v; v++) {
            double *to = total + (2 * i + v) * LN;
            UNROLL
            for (int half = 0; half < N_WIDE; half++, to += LN / N_WIDE) {
                K(doubles_t) all;
                memcpy(&all, to, sizeof all);
                all += K(half_as_wide)(&sum[i][v], half);
                memcpy(to, &all, sizeof all);
            }
        }
}

/* The same of n_v (a constant) maps, few, with samples side by side: y has the rows of the first map. */
static inline __attribute__((always_inline)) void K(few_tile)(
    const int n_k, const int n_v, const conv_t *g, const REAL *from_x, const REAL *zeros, int64_t p,
    int64_t n_p, int64_t b, int64_t n_b, int64_t k, const REAL *y, double *total) {
    VEC_T sum[WR][2];
    UNROLL
    for (int i = 0; i < n_k; i++) sum[i][0] = sum[i][1] = (VEC_T){0};
    for (; n_p > 0; n_p--, p++) {
        const int32_t *src = g->src + g->which[p] * g->n_rows + k;
        const REAL *from = from_x + g->first[p] * g->ldx + b, *x[WR];
        const REAL *flows = y + p * g->n_parts * g->n_r * g->ldw + b;
        UNROLL
        for (int i = 0; i < n_k; i++) x[i] = src[i] < 0 ? zeros : from + src[i] * g->ldx;
        for (int64_t j = 0; j < n_b; j += LN) {
            const int64_t n = n_b - j;
            VEC_T ys[2];
            UNROLL
            for (int v = 0; v < n_v; v++)
                ys[v] = n < LN ? K(part_load)(flows + v * g->ldw + j, n)
                               : K(vec_load)(flows + v * g->ldw + j);
            UNROLL
            for (int i = 0; i < n_k; i++) {
                const VEC_T xs = n < LN ? K(part_load)(x[i] + j, n) : K(vec_load)(x[i] + j);
                UNROLL
                for (int v = 0; v < n_v; v++) sum[i][v] += xs * ys[v];
            }
        }
    }
    UNROLL
    for (int i = 0; i < n_k; i++)
        UNROLL
        for (int v = 0; v < n_v; v++) {
            K(doubles_t) all = K(half_as_wide)(&sum[i][v], 0);
            for (int half = 1; half < N_WIDE; half++) all += K(half_as_wide)(&sum[i][v], half);
            double one = 0;
            for (int lane = 0; lane < LN / N_WIDE; lane++) one += all[lane];
            total[i * 2 * LN + v] += one;
        }
}

#define GRADIENT_ROWS(M) \
    case M: \
        if (is_few && n_v == 2) K(few_tile)(M, 2, g, x, zeros, p, n_p, b, n_b, k, y, total); \
        else if (is_few) K(few_tile)(M, 1, g, x, zeros, p, n_p, b, n_b, k, y, total); \
        else if (n_v == 2) K(gradient_tile)(M, 2, g, x, zeros, p, n_p, b, n_b, k, y, total); \
        else K(gradient_tile)(M, 1, g, x, zeros, p, n_p, b, n_b, k, y, total); \
        break;

static void K(gradient_part)(int64_t n_k, int n_v, int is_few, const conv_t *g, const REAL *x,
                             const REAL *zeros, int64_t p, int64_t n_p, int64_t b, int64_t n_b,
                             int64_t k, const REAL *y, double *total) {
    switch (n_k) {
    GRADIENT_ROWS(1) GRADIENT_ROWS(2) GRADIENT_ROWS(3) GRADIENT_ROWS(4)
#if WR > 4
    GRADIENT_ROWS(5) GRADIENT_ROWS(6)
#endif
#if WR > 6
    GRADIENT_ROWS(7) GRADIENT_ROWS(8) GRADIENT_ROWS(9) GRADIENT_ROWS(10) GRADIENT_ROWS(11)
    GRADIENT_ROWS(12)
#endif
    }
}

/* Tiles lo to hi of a part's places, of positions p0 to p1. Gradients are transposed so that maps are
 * side by side, for some positions and samples at a time; where maps are too few for that, samples
 * are. totals: of a tile, of two vectors of maps, of each place. */
static void K(window_gradients)(const conv_t *g, int64_t rows, int64_t p0, int64_t p1, int64_t part,
                                int64_t lo, int64_t hi, char *room, double *totals) {
    const int64_t all = g->n_parts * g->n_r;    /* rows of y in a position */
    const REAL *x = (const REAL *)g->x + part * g->step * g->ldx;
    const REAL *y = (const REAL *)g->w + part * g->n_r * g->ldw;
    REAL *zeros = (REAL *)room, *flows = zeros + WINDOW_DEEP;
    const int64_t n_maps = (g->n_r + 2 * LN - 1) / (2 * LN) * 2 * LN, size = WR * n_maps;
    const int64_t deep = rows <= WINDOW_DEEP ? rows : WINDOW_DEEP;
    const int is_few = 2 * g->n_r * ((rows + LN - 1) / LN) < rows;
    const int64_t side = is_few ? 2 : 2 * LN;                   /* maps of a tile */
    int64_t each = rows > 0 ? WINDOW_DEEP / deep : 1;           /* positions at a time */
    if (is_few) each *= 4;
    memset(totals, 0, (hi - lo) * size * sizeof(double));
    memset(room, 0, WINDOW_DEEP * (1 + n_maps) * sizeof(REAL));
    for (int64_t p = p0; p < p1; p += each)
        for (int64_t b = 0; b < rows; b += deep) {
            const int64_t n_p = p1 - p < each ? p1 - p : each, n_b = rows - b < deep ? rows - b : deep;
            for (int64_t m = 0; m < g->n_r; m += side) {
                const int64_t left = g->n_r - m < side ? g->n_r - m : side;
                const int n_v = left > side / 2 ? 2 : 1;
                if (!is_few)
                    for (int64_t i = 0; i < n_p; i++)
                        K(window_turn)(y + ((p + i) * all + m) * g->ldw + b, g->ldw,
                                       flows + i * n_b * n_v * LN, n_v * LN, left, n_b);
                for (int64_t tile = lo; tile < hi; tile++) {
                    const int64_t k = K(tile_at)(g->n_rows, tile);
                    K(gradient_part)(K(tile_at)(g->n_rows, tile + 1) - k, n_v, is_few, g, x, zeros, p,
                                     n_p, b, n_b, k, is_few ? y + m * g->ldw : flows,
                                     totals + (tile - lo) * size + m / (2 * LN) * 2 * LN * WR
                                         + m % (2 * LN));
                }
            }
        }
}

/* phase 0: pack; 1: compute; 2: the sum of the parts of gradients. */
static void K(windows)(const tape_t *t, const conv_t *g, int phase, int tid, int nt) {
    const int64_t rows = resolve(t, g->rows);
    int64_t lo, hi;
    if (g->kind == 0 && phase == 0) {
        share(g->n_rows, tid, nt, 1, &lo, &hi);
        K(window_pack)(g, lo, hi);
        share(g->n_x, tid, nt, 1, &lo, &hi);
        if (g->ldx > 2 * LN) K(window_panel)(t, g, rows, lo, hi);
    } else if (g->kind == 0) {
        share(g->n_units, tid, nt, 1, &lo, &hi);
        K(window_sums)(t, g, rows, lo, hi);
    } else {
        /* Tiles of each part's places; if these are few, of shares of the positions, whose number is
         * the same for any number of threads. */
        const int64_t n_each = (g->n_rows + WR - 1) / WR, n_tiles = g->n_parts * n_each;
        const int64_t few = (16 + n_tiles - 1) / n_tiles;
        const int64_t n_shares = few < g->n_groups ? few : g->n_groups;
        const int64_t size = WR * ((g->n_r + 2 * LN - 1) / (2 * LN) * 2 * LN);
        double *totals = (double *)(t->panel + t->n_threads * g->room_bytes);
        if (phase == 1) {
            share(n_shares * n_tiles, tid, nt, 1, &lo, &hi);
            while (lo < hi) {
                const int64_t of = lo / n_tiles, part = lo / n_each % g->n_parts, from = lo % n_each;
                const int64_t n = hi - lo < n_each - from ? hi - lo : n_each - from;
                K(window_gradients)(g, rows, g->n_groups * of / n_shares,
                                    g->n_groups * (of + 1) / n_shares, part, from, from + n,
                                    t->panel + tid * g->room_bytes, totals + lo * size);
                lo += n;
            }
        } else if (phase == 2) {
            share(n_tiles, tid, nt, 1, &lo, &hi);
            for (int64_t tile = lo; tile < hi; tile++) {
                const int64_t part = tile / n_each, of = tile % n_each;
                const int64_t first = K(tile_at)(g->n_rows, of);
                for (int64_t k = first; k < K(tile_at)(g->n_rows, of + 1); k++)
                    for (int64_t m = 0; m < g->n_r; m++) {
                        const double *total = totals + tile * size + m / (2 * LN) * 2 * LN * WR
                                            + (k - first) * 2 * LN + m % (2 * LN);
                        double sum = 0;
                        for (int64_t i = 0; i < n_shares; i++) sum += total[i * n_tiles * size];
                        ((REAL *)g->out)[(part * g->n_r + m) * g->n_rows + k] = (REAL)sum;
                    }
            }
        }
    }
}

#include "pools.h"
