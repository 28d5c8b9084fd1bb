"""The declarations of tape.h and products.h."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "tape.h":
    enum:
        MAX_PARTS
    ctypedef struct extent_t:
        int64_t fixed
        int32_t dim
    ctypedef struct coef_t:
        double factor
        int32_t scalar, per
    ctypedef struct drawn_t:
        const int64_t *iteration
        const uint64_t *samples
        const uint32_t *keys
        const int64_t *sources
        int64_t n_keys, n_sources
        uint32_t site
        int32_t kind
    ctypedef struct view_t:
        char *data
        int64_t stride[3]
        const int32_t *index[3]
        const uint16_t *mask[3]
        int32_t dtype, ascending, local, direct
        const drawn_t *drawn
    ctypedef struct op_t:
        int32_t op, a, b, c
    ctypedef struct loop_t:
        extent_t extent[3]
        const int64_t *indptr
        int32_t n_in, n_out, n_ops, n_const, n_values, n_slots, reduce, axis, accumulate, fast, term
        int32_t role[8]
        int32_t gate
        view_t *view
        view_t *room
        op_t *ops
        coef_t *consts
        int32_t *slot
        int32_t *result
    ctypedef struct matrix_t:
        char *data
        int64_t stride[2]
        int64_t ld
        int32_t row
    ctypedef struct gemm_t:
        matrix_t a, b, c
        extent_t m, n, k
        coef_t alpha, beta
        float *v
        float *w
        int64_t ldv, ldw
        const int32_t *rows
        const int32_t *cols
        const uint16_t *bits
        coef_t decay
        int32_t n_parts
        const float *part[MAX_PARTS]
        int64_t ldpart[MAX_PARTS]
        int32_t live
        float *panels
        int32_t followers, zeros
    ctypedef struct draw_t:
        char *out
        int64_t stride[2]
        int32_t dtype, kind
        extent_t rows, neurons
        const uint64_t *samples
        int32_t iteration
        uint32_t key[2]
        uint32_t site
        int64_t first
        coef_t below
    ctypedef struct load_t:
        const char *source
        int64_t row_stride, col_stride
        int32_t dtype
        const int64_t *index
        char *out
        int64_t stride[2]
        int32_t out_dtype
        extent_t rows, cols
        coef_t scale
        const char *center
        const char *factor
    ctypedef struct live_t:
        const char *mask
        int64_t stride
        int32_t dtype
        extent_t n
        int32_t *list
        uint16_t *bits
        int32_t dim
    ctypedef struct conv_t:
        int32_t kind, end, of_squares
        char *x
        char *w
        char *out
        char *packed
        char *bias
        char *gate
        int64_t ldx, ldw, ldo, ldz, n_groups, n_units, n_r, n_rows, step, n_x
        int64_t room_bytes, n_parts, apart
        extent_t rows
        const int64_t *ptr
        const int64_t *base
        const int32_t *src
        const int32_t *row
        const int32_t *length
        const int32_t *which
        const int32_t *first
        const int32_t *unit
    ctypedef struct pool_t:
        int32_t kind, end
        char *x
        char *out
        char *where
        char *upper
        char *gate
        const char *place
        const uint8_t *same
        int64_t ldx, ldo, ldw, ldu, ldz, n_groups
        extent_t rows
        const int64_t *ptr
        const int32_t *src
    ctypedef struct rank_t:
        char *in_ "in"
        char *out
        int64_t from_ "from"[2]
        int64_t to[2]
        extent_t rows, neurons
    ctypedef struct ins_t:
        int32_t kind, numpy
        int64_t ns
        gemm_t *gemm
        loop_t *loop
        draw_t *draw
        load_t *load
        live_t *live
        conv_t *conv
        pool_t *pool
        rank_t *rank
    ctypedef void (*gemm_numpy_t)(void *, const gemm_t *, int64_t, int64_t, int64_t, double,
                                  double) noexcept nogil
    ctypedef struct tape_t:
        int32_t dtype, n_threads, n_ins, room, spin, profile, ilp64
        ins_t *ins
        int64_t *dims
        double *scalars
        void *sgemm
        void *dgemm
        gemm_numpy_t numpy_gemm
        void *owner
        char **scratch
        int64_t scratch_bytes
        char *panel
        int64_t panel_bytes
        char **packs
        int32_t wide
        int32_t packed
        void *blas_get
        void *blas_set
        void *worker
        int64_t pid
    int MAX_STACKED, FEW_VIEWS, LEVEL_USED, WINDOW_DEEP, MAX_DIMS, MAX_SCALARS
    int STRIP_BYTES_ "STRIP_BYTES", BEGIN_CYCLES_ "BEGIN_CYCLES"  # engine has them for Python
    int IOTA, DRAWN
    int K_GEMM, K_LOOP, K_GEMM_LOOP, K_DRAW, K_LOAD, K_LIVE, K_WINDOWS, K_POOL, K_RANK
    int END_BIAS, END_RELU, END_GATE
    int POOL_SUM, POOL_SUM_AT, POOL_MAX, POOL_ARGMAX, POOL_MAX_BOTH
    int POOL_MIN, POOL_ARGMIN, POOL_MIN_BOTH
    int FAST_PLACES
    void choose_level(int) nogil
    int is_intel() nogil
    int start_threads(tape_t *) nogil
    void stop_threads(tape_t *) nogil
    void tape_run(tape_t *, int32_t, int32_t, int) nogil
    void tape_pack(tape_t *, int32_t, int32_t) nogil
    void tape_free(tape_t *) nogil

cdef extern from "bands.h":
    ctypedef struct uses_t:
        char ***pointer
        int64_t *offset
        int n
    ctypedef struct moving_t:
        uses_t uses
        char *memory
        int64_t first, unit
        int32_t dim, stays
    ctypedef struct stepped_t:
        load_t *load
        const char *base
        int64_t stride
        int32_t number, columns
    ctypedef struct bands_t:
        pass
    ctypedef struct pointed_t:
        char **at
        int64_t row, is_written
    int64_t pointers_of(const ins_t *, int, pointed_t *) nogil
    bands_t *bands_make(const tape_t *, int32_t, int32_t, const moving_t *, int, const stepped_t *, int)
    void bands_free(bands_t *) noexcept
    int bands_are(const bands_t *, int32_t, int32_t)
    int bands_threads(const tape_t *, const bands_t *) nogil
    int bands_share(const tape_t *, const bands_t *) nogil
    void bands_run(tape_t *, bands_t *, int64_t, int, int64_t, int, int) nogil

cdef extern from "products.h":
    int KERNEL_BYTES, ZEROS_A, ZEROS_B
    int64_t WIDE_PANELS(int64_t, int64_t)
