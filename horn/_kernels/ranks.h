/* The places of numbers in the order of their row: the largest is 0, of equal ones the first comes
 * first, and what is no number comes last. Rows are sorted by digits; short ones are counted.
 * Part of strips.h.
 */
#if IS_F32
#define KEY uint32_t
#else
#define KEY uint64_t
#endif
#define KEY_BITS (8 * (int)sizeof(KEY))
#define DIGIT 256
#define FEW_RANKED 192          /* below, all pairs take less time than to count digits */

typedef struct { KEY key; int32_t place; } K(ranked_t);

/* Whole numbers in the reverse order; both zeros are one. */
static inline KEY K(rank_key)(REAL x) {
    const KEY sign = (KEY)1 << (KEY_BITS - 1);
    KEY u;
    x += (REAL)0;
    memcpy(&u, &x, sizeof(KEY));
    u = u & sign ? u : ~(u | sign);
    return x != x ? ~(KEY)0 : u;
}

static void K(rank_by_pairs)(const KEY *key, int64_t n, REAL *to, int64_t step) {
    for (int64_t i = 0; i < n; i++) {
        const KEY own = key[i];
        KEY before = 0;
        for (int64_t j = 0; j < i; j++) before += key[j] <= own;
        for (int64_t j = i + 1; j < n; j++) before += key[j] < own;
        to[i * step] = (REAL)before;
    }
}

/* from, spare : n each. The sort by each digit keeps the order that is there. */
static void K(rank_by_digits)(K(ranked_t) *from, K(ranked_t) *spare, int64_t n, REAL *to,
                              int64_t step) {
    int32_t count[sizeof(KEY)][DIGIT];
    memset(count, 0, sizeof(count));
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < (int)sizeof(KEY); d++) count[d][from[i].key >> 8 * d & (DIGIT - 1)]++;
    for (int d = 0; d < (int)sizeof(KEY); d++) {
        int32_t *c = count[d], sum = 0;
        if (c[from[0].key >> 8 * d & (DIGIT - 1)] == n) continue;
        for (int k = 0; k < DIGIT; k++) { const int32_t here = c[k]; c[k] = sum; sum += here; }
        for (int64_t i = 0; i < n; i++) spare[c[from[i].key >> 8 * d & (DIGIT - 1)]++] = from[i];
        K(ranked_t) *turn = from; from = spare; spare = turn;
    }
    for (int64_t i = 0; i < n; i++) to[from[i].place * step] = (REAL)i;
}

static void K(ranks)(const tape_t *t, const rank_t *g, char *scratch, int tid, int nt) {
    const int64_t n = resolve(t, g->neurons);
    int64_t lo, hi;
    share(resolve(t, g->rows), tid, nt, 1, &lo, &hi);
    if (n <= 0) return;
    for (int64_t b = lo; b < hi; b++) {
        const REAL *x = (const REAL *)g->in + b * g->from[0];
        REAL *to = (REAL *)g->out + b * g->to[0];
        if (n < FEW_RANKED) {
            KEY *key = (KEY *)scratch;
            for (int64_t i = 0; i < n; i++) key[i] = K(rank_key)(x[i * g->from[1]]);
            K(rank_by_pairs)(key, n, to, g->to[1]);
            continue;
        }
        K(ranked_t) *all = (K(ranked_t) *)scratch;
        for (int64_t i = 0; i < n; i++)
            all[i] = (K(ranked_t)){K(rank_key)(x[i * g->from[1]]), (int32_t)i};
        K(rank_by_digits)(all, all + n, n, to, g->to[1]);
    }
}
#undef KEY
#undef KEY_BITS
#undef DIGIT
#undef FEW_RANKED
