/* The tape: a flat array of instructions over strided views, and the threads that run it.
 *
 * No checks and no allocation here: engine.pyx has checked every shape when it appended. The loop,
 * draw and load bodies are in strips.h, draws.h and loads.h, compiled once per dtype and per
 * processor level (plain.c, avx2.c, avx512.c) and chosen when the module is imported: the build
 * needs no -march.
 */
#ifndef HORN_TAPE_H
#define HORN_TAPE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define HORN_X86 1
#endif

/* Bytes of one register strip: a dozen live strips stay inside a 32 KiB first-level cache. */
#define STRIP_BYTES 2048
/* Cycles that an operation takes to begin on a strip; walks.py counts with both. */
#define BEGIN_CYCLES 32
/* Numbers of a tape that may change from run to run. */
#define MAX_DIMS 1024
#define MAX_SCALARS 1024
/* The bytes of rows that a loop returns to: half of a small second-level cache. */
#define NEAR_ROWS_BYTES 131072

enum { F32, F64, U8, I32, I64, IOTA, DRAWN };
/* Bytes per element; the data of an IOTA and of DRAWN numbers are a number, not memory. */
static const int64_t ITEM_SIZE[] = {4, 8, 1, 4, 8, 1, 1};

enum { K_GEMM, K_LOOP, K_GEMM_LOOP, K_DRAW, K_LOAD, K_LIVE, K_WINDOWS, K_POOL, K_RANK };

enum {
    OP_COPY, OP_NEG, OP_ABS, OP_SQRT, OP_EXP, OP_LOG, OP_LOG1P, OP_EXPM1, OP_TANH, OP_SIGMOID,
    OP_SOFTPLUS, OP_SIN, OP_COS, OP_FLOOR, OP_SIGN, OP_NOT, OP_RELU, OP_ERF, OP_ERFC,
    OP_ATAN,
    OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MIN, OP_MAX, OP_POW, OP_ATAN2, OP_FLOORDIV, OP_MOD,
    OP_HALFWAY, OP_LT, OP_LE, OP_GT, OP_GE, OP_EQ, OP_NE, OP_AND, OP_OR, OP_SELECT, OP_FMA, N_OPS
};

/* How a loop runs: strip by strip; as a sum of products of two inputs, or a copy of one; or by one of
 * the forms of tiles.h. */
enum {
    FAST_NONE, FAST_DOT, FAST_COPY, FAST_ROWS, FAST_COLUMNS, FAST_PLACES, FAST_QUOTIENTS, FAST_WAVES,
    FAST_SLOPES, FAST_SQUARES
};

enum { R_NONE, R_SUM, R_PROD, R_MAX, R_MIN, R_ANY, R_ALL, R_ARGMAX };

/* Terms of the tiles of tiles.h, of two values: product, sum, the first less the second, the second
 * less the first, their distance, its square, a number less or plus their product. */
enum { T_MUL, T_ADD, T_SUB, T_BUS, T_APART, T_SQUARE, T_LESS, T_MORE };
/* Functions that tiles sum. */
enum { W_EXP, W_TANH, W_SIGMOID, W_SQUARE, N_WAVES };

/* Operations on the sums of windows: a bias is added, relu, 0 where the gate is not above 0. */
enum { END_BIAS = 1, END_RELU = 2, END_GATE = 4 };

/* Folds over windows; BOTH: the extreme and its place. */
enum {
    POOL_SUM, POOL_SUM_AT, POOL_MAX, POOL_ARGMAX, POOL_MAX_BOTH, POOL_MIN, POOL_ARGMIN, POOL_MIN_BOTH
};

enum { D_UNIFORM, D_NORMAL, D_BERNOULLI };

typedef struct { int64_t fixed; int32_t dim; } extent_t;               /* dim < 0: fixed */
typedef struct { double factor; int32_t scalar, per; } coef_t;         /* factor * scalar / dim */

/* Draws of messages, made where a loop reads them. Messages are numbered: row, receiver, source; of
 * a sparse link row, edge, and each edge has a key of its own. */
typedef struct {
    const int64_t *iteration;
    const uint64_t *samples;    /* by row, or NULL: shared by the batch */
    const uint32_t *keys;       /* two for each receiver, or edge */
    const int64_t *sources;
    int64_t n_keys, n_sources;  /* n_sources 0: as many edges as keys */
    uint32_t site;
    int32_t kind;
} drawn_t;

typedef struct {
    char *data;                 /* for an IOTA: its first value, as an integer */
    int64_t stride[3];          /* in elements; 0 = broadcast */
    const int32_t *index[3];    /* coordinate -> place, or NULL */
    const uint16_t *mask[3];    /* the same list as bits, 16 places each, or NULL */
    int32_t dtype;
    int32_t ascending;          /* index lists ascend without repeats: may be one range */
    int32_t local;              /* an IOTA that counts from the start of its ragged row */
    int32_t direct;             /* an output that its last operation may write in place */
    const drawn_t *drawn;       /* for DRAWN numbers */
} view_t;

typedef struct { int32_t op, a, b, c; } op_t;

typedef struct {
    extent_t extent[3];
    const int64_t *indptr;      /* ragged axis 1: places indptr[a0] to indptr[a0 + 1] */
    int32_t n_in, n_out, n_ops, n_const, n_values, n_slots;
    int32_t reduce, axis;       /* monoid; 1 or 2 */
    int32_t accumulate;         /* combine with what the output holds */
    int32_t fast;               /* FAST_* */
    int32_t term, role[8];      /* of a tile: T_* or W_*; the roles of values (tiles.py) */
    int32_t gate;               /* k: where input k - 1 is not 0 there is nothing to reduce; -k: where
                                 * it is; 0: always */
    view_t *view;               /* inputs, then outputs */
    view_t *room;               /* two copies of them per thread, if they exceed FEW_VIEWS */
    op_t *ops;
    coef_t *consts;
    int32_t *slot;              /* value -> scratch strip */
    int32_t *result;            /* output -> value */
} loop_t;

/* Whether a loop has a form of tiles.h over columns; squares may be over rows, too. */
static inline int has_columns(const loop_t *l) {
    return l->fast == FAST_COLUMNS || l->fast == FAST_QUOTIENTS || l->fast == FAST_SLOPES
        || l->fast == FAST_SQUARES;
}

typedef struct { char *data; int64_t stride[2], ld; int32_t row; } matrix_t;

#define MAX_PARTS 7
/* Products of one a that are computed together. */
#define MAX_STACKED 16

typedef struct {
    matrix_t a, b, c;
    extent_t m, n, k;
    coef_t alpha, beta;
    /* thin.h can compute product and loop at once: v = decay v + product, w += v (w may be NULL),
     * at live rows and columns or at all; v NULL: it cannot */
    float *v, *w; int64_t ldv, ldw;
    const int32_t *rows, *cols; const uint16_t *bits;
    coef_t decay;
    /* parts of other tasks that are added to the product */
    int32_t n_parts; const float *part[MAX_PARTS]; int64_t ldpart[MAX_PARTS];
    /* 1, 2: b is w at live rows and columns, turned or not, and live.h makes the product */
    int32_t live;
    /* b as packed by wide_pack while instructions are repeated, or NULL; and the number of
     * following instructions with such panels and the same a: they are computed as one product */
    float *panels; int32_t followers;
    int32_t zeros;              /* ZEROS_*, of products.h */
} gemm_t;

typedef struct {
    char *out; int64_t stride[2]; int32_t dtype, kind;
    extent_t rows, neurons;
    const uint64_t *samples;    /* NULL: shared by the batch */
    int32_t iteration;          /* a dim */
    uint32_t key[2], site;
    int64_t first;              /* number of the first neuron */
    coef_t below;               /* Bernoulli: one where the uniform is below */
} draw_t;

typedef struct {
    const char *source; int64_t row_stride, col_stride; int32_t dtype;
    const int64_t *index;
    char *out; int64_t stride[2]; int32_t out_dtype;
    extent_t rows, cols;
    coef_t scale;
    const char *center, *factor;    /* NULL, or one per column: doubles of doubles, else of the tape's type */
} load_t;

typedef struct {
    const char *mask; int64_t stride; int32_t dtype;
    extent_t n;
    int32_t *list; uint16_t *bits; int32_t dim;
} live_t;

/* Samples, of one or several positions, whose gradients are added up as floats. */
#define WINDOW_DEEP 208
/* Sums over windows (windows.h). Positions share lists: position p has list which[p], whose rows of
 * x are counted from row first[p].
 * kind 0: results in n_groups groups of n_r rows. List k has runs ptr[k] to ptr[k + 1]: length[j]
 * pairs of rows of x, each `apart` from the next, from src[j], and of the n_rows rows of weights, from
 * row[j]; these are packed from w[base + r step]. What is summed are their products or, with of_squares, the squares of their
 * differences. A unit is a group or two with the same list; else its second is -1.
 * kind 1: gradients of n_r maps by n_rows places: w has the rows of what flows back (ldw), src the
 * row of x of each (list, place), -1 for none; the tape's panel has the threads' rooms, then totals.
 * In each position n_parts parts follow each other, of n_r maps and of step rows of x; gradients are
 * n_parts * n_r rows, each of its part alone.
 * end: END_* of kind 0, with a bias for each row of out, and a gate that lies like it. */
typedef struct {
    int32_t kind, end, of_squares;
    char *x, *w, *out, *packed, *bias, *gate;
    int64_t ldx, ldw, ldo, ldz, n_groups, n_units, n_r, n_rows, step, n_x, room_bytes,
        n_parts, apart;
    extent_t rows;
    const int64_t *ptr, *base;
    const int32_t *src, *row, *length, *which, *first, *unit;
} conv_t;

/* Folds over windows (pools.h); kind is a POOL_*. same: whether a row folds the same
 * as the row before, or NULL. */
typedef struct {
    int32_t kind, end;
    char *x, *out, *where, *upper, *gate;
    const char *place;
    const uint8_t *same;
    int64_t ldx, ldo, ldw, ldu, ldz, n_groups;
    extent_t rows;
    const int64_t *ptr;
    const int32_t *src;
} pool_t;

/* Places in the order of each row (ranks.h). */
typedef struct { char *in, *out; int64_t from[2], to[2]; extent_t rows, neurons; } rank_t;

/* ---- a loop bound to this run's extents ---- */
/* Views of a loop that are on the stack while it runs; a loop with more has them in its `room`. */
#define FEW_VIEWS 48
typedef struct {
    int64_t n[3]; const int64_t *indptr; int axis; view_t *v;
} domain_t;

typedef struct {
    int32_t kind, numpy;        /* numpy: this GEMM goes back to Python */
    int64_t ns;                 /* profile */
    gemm_t *gemm; loop_t *loop; draw_t *draw; load_t *load; live_t *live; conv_t *conv;
    pool_t *pool; rank_t *rank;
    domain_t *bound;            /* of a band: the loop's part, bound once for all steps */
} ins_t;

typedef struct tape_s tape_t;
typedef void (*gemm_numpy_t)(void *, const gemm_t *, int64_t, int64_t, int64_t, double, double);

typedef struct {
    pthread_t thread; tape_t *tape; int tid;
} worker_t;

struct tape_s {
    int32_t dtype, n_threads, n_ins, room, spin, profile, ilp64;
    ins_t *ins;
    int64_t *dims; double *scalars;     /* NumPy's */
    void *sgemm, *dgemm;
    gemm_numpy_t numpy_gemm; void *owner;
    char **scratch; int64_t scratch_bytes;
    char *panel; int64_t panel_bytes;   /* scratch of an instruction over windows */
    char **packs;               /* by thread: scratch of the kernels of products.h */
    int32_t wide;               /* products by wide.h, not by the BLAS */
    int32_t packed;             /* the panels of products hold the present b */
    const tape_t *whole;        /* of a band: its tape */
    /* A thread's work and its argument; NULL: the instructions from first to last. */
    void (*work)(tape_t *, void *, int tid); void *of;
    void *blas_get, *blas_set;  /* the number of threads that the BLAS itself would use */
    /* threads */
    worker_t *worker; int32_t n_workers; int64_t pid;
    int32_t first, last; atomic_int stop;
    atomic_int go, sleepers_go;
    atomic_int arrived, generation, sleepers;
    atomic_int taken;           /* parts of the current loop that threads have taken */
    pthread_mutex_t lock; pthread_cond_t wake;
};

static inline int64_t resolve(const tape_t *t, extent_t e) {
    return e.dim < 0 ? e.fixed : t->dims[e.dim];
}
static inline double value_of(const tape_t *t, coef_t c) {
    double v = c.factor;
    if (c.scalar >= 0) v *= t->scalars[c.scalar];
    if (c.per >= 0) v /= (double)t->dims[c.per];
    return v;
}
/* The part of n that belongs to a thread of nt, cut at multiples of `align`. */
static inline void share(int64_t n, int64_t tid, int64_t nt, int64_t align, int64_t *lo, int64_t *hi) {
    int64_t units = (n + align - 1) / align;
    *lo = units * tid / nt * align; *hi = units * (tid + 1) / nt * align;
    if (*lo > n) *lo = n;
    if (*hi > n) *hi = n;
}

/* ---- what the first thread does alone: a second costs more than it saves ---- */
static inline int is_product_alone(int64_t m, int64_t n, int64_t k) { return m * n * (k + 1) < 65536; }
static inline int is_loop_alone(int64_t places, int64_t n_ops) { return places * (n_ops + 1) < 16384; }
/* drawn or loaded */
static inline int are_numbers_alone(int64_t rows, int64_t n) { return rows * n < 4096; }

/* ---- the bodies of both dtypes, by processor level ---- */
typedef struct {
    void (*loop)(const tape_t *, const loop_t *, domain_t *, char *);
    void (*draw)(const tape_t *, const draw_t *, int, int);
    void (*load)(const tape_t *, const load_t *, int, int);
    void (*windows)(const tape_t *, const conv_t *, int, int, int);
    void (*pools)(const tape_t *, const pool_t *, int, int);
    void (*ranks)(const tape_t *, const rank_t *, char *, int, int);
} body_t;

/* Shared by the files of this extension, not beyond it. */
#pragma GCC visibility push(hidden)
extern const body_t PLAIN[2];
#ifdef HORN_X86
extern const body_t AVX2[2], AVX512[2];
#endif
extern int LEVEL_USED;

void choose_level(int limit);
int is_intel(void);
int start_threads(tape_t *t);
void stop_threads(tape_t *t);
void tape_run(tape_t *t, int32_t first, int32_t last, int n_threads);
void tape_pack(tape_t *t, int32_t first, int32_t last);
void tape_free(tape_t *t);
void tape_run_work(tape_t *t, void (*work)(tape_t *, void *, int), void *of, int n_threads);
void run_all(tape_t *t, int tid, int nt);
void wait_all(tape_t *t, int nt);
void pack_some(const tape_t *t, int32_t first, int32_t last, int tid, int nt);
void bind_part(const tape_t *t, const loop_t *l, domain_t *d, view_t *spare, int axis, int64_t lo,
               int64_t hi);
#pragma GCC visibility pop
#endif
