/* Folds over windows, the batch side by side: included by windows.h, per dtype and level.
 *
 * Row k of out is folded from the rows src[ptr[k]] to src[ptr[k + 1] - 1] of x: their sum, the largest
 * or smallest of them, or its place among them; of an extreme both, if there is `where`. With `upper`
 * a row counts only where upper[src] is its place: the gradient of an extreme.
 * A row that is the `same` as the one before is copied: the maps of a position see one window.
 * All bits are those of the loops of strips.h: sums of more than two rows are double.
 */
#define SUM_VECTORS 4     /* vectors of a sum side by side */
#define POOL_ROW(array, ld, row, v) ((const REAL *)g->array + (row) * g->ld + b + (v) * LN)
#define POOL_LOAD(array, ld, row, v) \
    (v == n_v - 1 && some < LN ? K(part_load)(POOL_ROW(array, ld, row, v), some) \
                               : K(vec_load)(POOL_ROW(array, ld, row, v)))

static inline void K(pool_keep)(char *out, int64_t at, VEC_T v, int64_t n) {
    if (n < LN) K(part_store)((REAL *)out + at, v, n);
    else K(vec_store)((REAL *)out + at, v);
}

/* n_v (a constant) vectors of row k from place b, the last of them of `some` numbers. */
static inline __attribute__((always_inline)) void K(pool_sum)(
    const int is_at, const int is_few, const int n_v, const pool_t *g, int64_t k, int64_t b,
    int64_t some) {
    VEC_T sum[SUM_VECTORS] = {{0}};
    K(doubles_t) total[SUM_VECTORS][N_WIDE] = {{{0}}};
    for (int64_t j = g->ptr[k]; j < g->ptr[k + 1]; j++) {
        const VEC_T place = is_at ? K(vec_of)(((const REAL *)g->place)[j]) : (VEC_T){0};
        UNROLL
        for (int v = 0; v < n_v; v++) {
            VEC_T x = POOL_LOAD(x, ldx, g->src[j], v);
            if (is_at) {
                const VEC_T best = POOL_LOAD(upper, ldu, g->src[j], v);
                x = K(vec_pick)((K(bits_t))(best == place), x, (VEC_T){0});
            }
            if (is_few) sum[v] += x;
            else
                for (int half = 0; half < N_WIDE; half++) total[v][half] += K(half_as_wide)(&x, half);
        }
    }
    UNROLL
    for (int v = 0; v < n_v; v++) {
        const int64_t n = v == n_v - 1 ? some : LN;
        if (!is_few) sum[v] = K(vec_narrow)(total[v]);
        sum[v] = K(vec_end)(g->end, sum[v], 0, POOL_ROW(gate, ldz, k, v), n);
        K(pool_keep)(g->out, k * g->ldo + b + v * LN, sum[v], n);
    }
}

static inline __attribute__((always_inline)) void K(pool_extreme)(
    const int is_min, const int says_best, const int says_place, const int n_v, const pool_t *g,
    int64_t k, int64_t b, int64_t some) {
    const int64_t from = g->ptr[k], to = g->ptr[k + 1];
    const REAL none = is_min ? (REAL)INFINITY : -(REAL)INFINITY;
    VEC_T best[2], at[2];
    for (int v = 0; v < n_v; v++) {
        best[v] = K(vec_of)(none); at[v] = K(vec_of)(from < to ? 0 : -1);
    }
    for (int64_t j = from; j < to; j++) {
        const VEC_T place = K(vec_of)((REAL)(j - from));
        for (int v = 0; v < n_v; v++) {
            const VEC_T x = POOL_LOAD(x, ldx, g->src[j], v);
            const K(bits_t) is_lost = (K(bits_t))(best[v] != best[v]);      /* NaN stays */
            if (says_place) {                   /* of equals the first */
                const K(bits_t) is_first = (K(bits_t))(is_min ? best[v] <= x : best[v] >= x);
                at[v] = K(vec_pick)(is_first | is_lost, at[v], place);
            }
            const K(bits_t) keeps = (K(bits_t))(is_min ? best[v] < x : best[v] > x);
            best[v] = K(vec_pick)(keeps | is_lost, best[v], x);             /* of equals the last */
        }
    }
    for (int v = 0; v < n_v; v++) {
        const int64_t n = v == n_v - 1 ? some : LN;
        if (says_best) K(pool_keep)(g->out, k * g->ldo + b + v * LN, best[v], n);
        if (says_best && says_place) K(pool_keep)(g->where, k * g->ldw + b + v * LN, at[v], n);
        if (says_place && !says_best) K(pool_keep)(g->out, k * g->ldo + b + v * LN, at[v], n);
    }
}

/* A row by blocks of `MOST` vectors (2 or 4), its end by smaller ones. */
#define POOL_BLOCKS(MOST, TILE, ...) \
    for (int64_t b = 0, left; (left = rows - b) > 0; ) { \
        if (MOST == 4 && left >= 4 * LN) { TILE(__VA_ARGS__, MOST, g, k, b, LN); b += 4 * LN; } \
        else if (left >= 2 * LN) { TILE(__VA_ARGS__, 2, g, k, b, LN); b += 2 * LN; } \
        else if (left > LN) { TILE(__VA_ARGS__, 2, g, k, b, left - LN); b = rows; } \
        else { TILE(__VA_ARGS__, 1, g, k, b, left); b = rows; } \
    }
#define POOL(NAME, BLOCKS) \
static void K(NAME)(const pool_t *g, int64_t rows, int64_t lo, int64_t hi) { \
    for (int64_t k = lo; k < hi; k++) { \
        if (k > lo && g->same && g->same[k]) { \
            REAL *to = (REAL *)g->out + k * g->ldo; \
            memcpy(to, to - g->ldo, rows * sizeof(REAL)); \
            continue; \
        } \
        BLOCKS \
    } \
}
#define POOL_SUM(is_at) \
    if (g->ptr[k + 1] - g->ptr[k] <= 2) { POOL_BLOCKS(SUM_VECTORS, K(pool_sum), is_at, 1) } \
    else { POOL_BLOCKS(SUM_VECTORS, K(pool_sum), is_at, 0) }
POOL(pool_sums, POOL_SUM(0))
POOL(pool_sums_at, POOL_SUM(1))
POOL(pool_max, POOL_BLOCKS(2, K(pool_extreme), 0, 1, 0))
POOL(pool_argmax, POOL_BLOCKS(2, K(pool_extreme), 0, 0, 1))
POOL(pool_max_both, POOL_BLOCKS(2, K(pool_extreme), 0, 1, 1))
POOL(pool_min, POOL_BLOCKS(2, K(pool_extreme), 1, 1, 0))
POOL(pool_argmin, POOL_BLOCKS(2, K(pool_extreme), 1, 0, 1))
POOL(pool_min_both, POOL_BLOCKS(2, K(pool_extreme), 1, 1, 1))

static void K(pools)(const tape_t *t, const pool_t *g, int tid, int nt) {
    static void (*const FOLDS[])(const pool_t *, int64_t, int64_t, int64_t) = {
        [POOL_SUM] = K(pool_sums), [POOL_SUM_AT] = K(pool_sums_at),
        [POOL_MAX] = K(pool_max), [POOL_ARGMAX] = K(pool_argmax), [POOL_MAX_BOTH] = K(pool_max_both),
        [POOL_MIN] = K(pool_min), [POOL_ARGMIN] = K(pool_argmin), [POOL_MIN_BOTH] = K(pool_min_both),
    };
    int64_t lo, hi;
    share(g->n_groups, tid, nt, 1, &lo, &hi);
    FOLDS[g->kind](g, resolve(t, g->rows), lo, hi);
}
