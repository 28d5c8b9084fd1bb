/* The execution of a tape: loops cut into threads, products, the barrier (see tape.h). */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tape.h"
#include "products.h"

#ifdef HORN_X86
#include <immintrin.h>
#endif

static inline int64_t now_ns(void) {
    struct timespec ts; clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- a loop bound to this run's extents ---- */
static void shift(domain_t *d, int n_views, int axis, int64_t by) {
    for (int i = 0; i < n_views; i++) {
        view_t *v = &d->v[i];
        if (v->index[axis]) { v->index[axis] += by; if (by) v->mask[axis] = NULL; }
        else v->data += by * v->stride[axis] * ITEM_SIZE[v->dtype];
    }
}

static void swap_axes(domain_t *d, int n_views, int a, int b) {
    int64_t n = d->n[a]; d->n[a] = d->n[b]; d->n[b] = n;
    for (int i = 0; i < n_views; i++) {
        view_t *v = &d->v[i];
        int64_t s = v->stride[a]; v->stride[a] = v->stride[b]; v->stride[b] = s;
        const int32_t *x = v->index[a]; v->index[a] = v->index[b]; v->index[b] = x;
        const uint16_t *m = v->mask[a]; v->mask[a] = v->mask[b]; v->mask[b] = m;
    }
}

/* Merge axis `outer` into axis `inner` where every view walks both as one. */
static int merge(domain_t *d, int n_views, int outer, int inner) {
    if (d->n[outer] == 1) return 0;
    for (int i = 0; i < n_views; i++) {
        view_t *v = &d->v[i];
        if (v->index[outer] || v->index[inner]) return 0;
        if (d->n[inner] == 1 ? 0 : v->stride[outer] != d->n[inner] * v->stride[inner]) return 0;
    }
    if (d->n[inner] == 1)
        for (int i = 0; i < n_views; i++) d->v[i].stride[inner] = d->v[i].stride[outer];
    d->n[inner] *= d->n[outer]; d->n[outer] = 1;
    return 1;
}

/* Copy the views, turn index lists that are one range into plain offsets, merge axes. */
static void bind_loop(const tape_t *t, const loop_t *l, domain_t *d) {
    int nv = l->n_in + l->n_out;
    for (int a = 0; a < 3; a++) d->n[a] = resolve(t, l->extent[a]);
    d->indptr = l->indptr; d->axis = l->reduce ? l->axis : 0;
    memcpy(d->v, l->view, nv * sizeof(view_t));
    for (int i = 0; i < nv; i++) {
        view_t *v = &d->v[i];
        for (int a = 0; a < 3; a++)
            if (v->index[a] && v->ascending && !(l->indptr && a == 1) && d->n[a] > 0) {
                const int32_t *x = v->index[a];
                if (x[d->n[a] - 1] - x[0] == d->n[a] - 1) {
                    int64_t by = x[0];
                    v->index[a] = NULL;
                    v->data += by * v->stride[a] * ITEM_SIZE[v->dtype];
                }
            }
    }
}

/* `spare` has room for as many views. */
static void simplify(domain_t *d, int nv, view_t *spare) {
    if (d->indptr) return;
    if (d->axis == 0) {
        merge(d, nv, 1, 2);
        if (d->n[1] == 1) { swap_axes(d, nv, 0, 1); merge(d, nv, 1, 2); }
        else merge(d, nv, 0, 1);
    } else if (d->axis == 2) {
        merge(d, nv, 0, 1);
    } else {
        if (d->n[2] == 1 && d->n[1] > 1) {      /* nothing along the strip: reduce along it */
            swap_axes(d, nv, 1, 2); d->axis = 2; merge(d, nv, 0, 1);
        } else if (d->n[0] > 1) {               /* a0 may run along the strip too */
            domain_t e = *d;
            e.v = memcpy(spare, d->v, nv * sizeof(view_t));
            swap_axes(&e, nv, 0, 1);
            if (merge(&e, nv, 1, 2)) { swap_axes(&e, nv, 0, 1); *d = e; }
        }
    }
}

/* Whether it reduces over three axes: each element then costs enough to be worth a division. */
static int is_deep(const domain_t *d) {
    return d->axis > 0 && !d->indptr && d->n[0] > 1 && d->n[1] > 1 && d->n[2] > 1;
}

/* The axis that is cut. Along a0, or along rows of a1 if those are reduced, so that each is read by
 * one thread alone: weights, where samples are a0. Columns of tiles.h are packed for all of a0, so
 * a short a0 is not cut. */
static int axis_to_cut(const loop_t *l, const domain_t *d, int nt) {
    const int is_tile = has_columns(l) && d->axis == 1;
    int axis = -1;
    if (is_deep(d) && d->axis == 2 && d->n[1] >= 64 * nt) return 1;
    if (is_deep(d) && is_tile && d->n[0] < 64 * nt && d->n[2] >= 64 * nt) return 2;
    for (int a = 0; a < 3; a++)
        if (!(d->axis == a && a > 0) && d->n[a] >= 8 * nt) return a;
    for (int a = 0; a < 3; a++)
        if (!(d->axis == a && a > 0) && (axis < 0 || d->n[a] > d->n[axis])) axis = a;
    return axis;
}

/* The number of parts of a loop: one for each thread, or, if it is long, more, which threads take
 * as they finish. A thread whose processor has other work then does less, and no other waits for
 * it. The numbers are the same: no part of a reduction is ever cut. Columns of tiles.h are packed
 * anew for each part of a0, so it has ROWS_EACH rows at least. */
#define PARTS_EACH 8
#define PART_WORK (1 << 19)
#define ROWS_EACH 128
static int64_t parts_of(const loop_t *l, const domain_t *d, int nt) {
    if (nt == 1 || !is_deep(d)) return nt;
    int64_t n = d->n[0] * d->n[1] * d->n[2] * (l->n_ops + 1) / PART_WORK;
    if (n > PARTS_EACH * nt) n = PARTS_EACH * nt;
    if (has_columns(l) && d->axis == 1 && axis_to_cut(l, d, nt) == 0 && n > d->n[0] / ROWS_EACH)
        n = d->n[0] / ROWS_EACH;
    return n < 2 * nt ? nt : n;
}

/* Keep this part of the domain; 0 when there is none. */
static int cut(const loop_t *l, domain_t *d, int nv, int64_t part, int64_t parts, int nt) {
    int64_t lo, hi;
    if (nt == 1) return 1;
    if (d->indptr) {
        const int64_t *p = d->indptr;
        int64_t n = d->n[0], total = p[n] - p[0] + n;
        if (is_loop_alone(total * (d->n[2] > 0 ? d->n[2] : 1), l->n_ops)) return part == 0;
        int64_t edge[2];
        for (int s = 0; s < 2; s++) {
            int64_t target = total * (part + s) / parts, a = 0, b = n;
            while (a < b) {
                int64_t m = (a + b) / 2;
                if (p[m] - p[0] + m < target) a = m + 1; else b = m;
            }
            edge[s] = a;
        }
        lo = edge[0]; hi = edge[1];
        shift(d, nv, 0, lo); d->indptr += lo; d->n[0] = hi - lo;
        return hi > lo;
    }
    if (is_loop_alone(d->n[0] * d->n[1] * d->n[2], l->n_ops)) return part == 0;
    const int axis = axis_to_cut(l, d, nt), is_tile = l->fast >= FAST_ROWS;
    const int64_t align = axis == 2 ? (is_deep(d) ? 32 : 16) : is_deep(d) && is_tile ? 4 : 1;
    /* The rest goes with the last part: alone it is no tile where the whole is one, of other bits. */
    const int64_t n = d->n[axis], rest = axis == 2 && is_deep(d) && n > align ? n % align : 0;
    share(n - rest, part, parts, align, &lo, &hi);
    if (part == parts - 1) hi = n;
    shift(d, nv, axis, lo); d->n[axis] = hi - lo;
    return hi > lo;
}

/* ---- the bodies ---- */
static body_t BODIES[2];
int LEVEL_USED = 0;
#ifdef HORN_X86
static const wide_t *WIDE;      /* horn's own products, from AVX2 on */
static thin_update_t *THIN;
#endif

void choose_level(int limit) {
    int level = 0;
#ifdef HORN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) level = 1;
    if (level && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) level = 2;
#endif
    if (level > limit) level = limit;
    LEVEL_USED = level;
    const body_t *bodies = PLAIN;
#ifdef HORN_X86
    if (level == 1) { bodies = AVX2; WIDE = &WIDE_AVX2; THIN = thin_update_avx2; }
    if (level == 2) { bodies = AVX512; WIDE = &WIDE_AVX512; THIN = thin_update_avx512; }
#endif
    BODIES[F32] = bodies[F32]; BODIES[F64] = bodies[F64];
}

int is_intel(void) {
#ifdef HORN_X86
    return __builtin_cpu_is("intel");
#else
    return 0;
#endif
}

/* ---- GEMM ---- */
/* A call of the BLAS: its integers may have 32 or 64 bits. */
#define BLAS_GEMM(function, INT, REAL) \
    ((void (*)(int, int, int, INT, INT, INT, REAL, const void *, INT, const void *, INT, REAL, void *, \
               INT))(function))( \
        order, ta, tb, (INT)m, (INT)n, (INT)k, (REAL)alpha, a, (INT)g->a.ld, b, (INT)g->b.ld, \
        (REAL)beta, c, (INT)g->c.ld)

/* Rows [r0, r1) and columns [c0, c1) of C. */
static void gemm_part(const tape_t *t, const gemm_t *g, int64_t r0, int64_t r1, int64_t c0,
                      int64_t c1, int64_t k, double alpha, double beta, int tid) {
    int64_t size = ITEM_SIZE[t->dtype], m = r1 - r0, n = c1 - c0;
    if (m <= 0 || n <= 0) return;
    const char *a = g->a.data + r0 * g->a.stride[0] * size;
    const char *b = g->b.data + c0 * g->b.stride[1] * size;
    char *c = g->c.data + (r0 * g->c.stride[0] + c0 * g->c.stride[1]) * size;
#ifdef HORN_X86
    if (t->wide) {
        const int64_t *as = g->a.stride, *bs = g->b.stride;
        if (g->c.row)
            WIDE->product((const float *)a, as[0], as[1], (const float *)b, bs[0], bs[1],
                          (float *)c, g->c.ld, m, n, k, (float)alpha, (float)beta, g->zeros,
                          t->packs[tid]);
        else
            WIDE->product((const float *)b, bs[1], bs[0], (const float *)a, as[1], as[0],
                          (float *)c, g->c.ld, n, m, k, (float)alpha, (float)beta,
                          g->zeros ? ZEROS_A + ZEROS_B - g->zeros : ZEROS_NONE, t->packs[tid]);
        return;
    }
#endif
    int order = g->c.row ? 101 : 102;
    int ta = g->a.row == g->c.row ? 111 : 112, tb = g->b.row == g->c.row ? 111 : 112;
    if (t->dtype == F32 && t->ilp64) BLAS_GEMM(t->sgemm, int64_t, float);
    else if (t->dtype == F32) BLAS_GEMM(t->sgemm, int, float);
    else if (t->ilp64) BLAS_GEMM(t->dgemm, int64_t, double);
    else BLAS_GEMM(t->dgemm, int, double);
}

#ifdef HORN_X86
/* Whether thin.h computes a gradient with its update; for AVX2 only where all neurons are live. */
static int is_thin(const tape_t *t, const gemm_t *g, int64_t k) {
    return g->v && t->packs && k > 0 && k <= THIN_K
           && (LEVEL_USED == 2 || (LEVEL_USED == 1 && !g->rows && !g->cols));
}
#endif

static void run_gemm(const tape_t *t, const ins_t *ins, int tid, int nt) {
    const gemm_t *g = ins->gemm;
    int64_t m = resolve(t, g->m), n = resolve(t, g->n), k = resolve(t, g->k), lo, hi;
    double alpha = value_of(t, g->alpha), beta = value_of(t, g->beta);
    if (m <= 0 || n <= 0) return;
#ifdef HORN_X86
    if (g->live) {
        const live_weights_t w = {g->w, g->ldw, g->rows, g->cols, g->bits};
        if (is_product_alone(m, n, k)) { nt = 1; if (tid) return; }
        share(n, tid, nt, 1, &lo, &hi);
        live_product((const float *)g->a.data, g->a.stride[0], g->a.stride[1], &w, g->live == 2,
                     (float *)g->c.data, g->c.stride[0], g->c.stride[1], m, lo, hi, k,
                     (float)beta, t->packs[tid]);
        return;
    }
#endif
    if (ins->numpy) {
        if (tid == 0) t->numpy_gemm(t->owner, g, m, n, k, alpha, beta);
        return;
    }
#ifdef HORN_X86
    if (is_thin(t, g, k)) {
        if (is_product_alone(m, n, k)) { nt = 1; if (tid) return; }
        share(m, tid, nt, m >= 32 * nt ? 12 : 1, &lo, &hi);
        THIN((const float *)g->a.data, g->a.stride[0], g->a.stride[1], (const float *)g->b.data,
             g->b.stride[0], g->b.stride[1], lo, hi, n, k, (float)alpha, (float)beta, g->v, g->ldv,
             NULL, 0, NULL, NULL, NULL, NULL, g->zeros == ZEROS_B, t->packs[tid]);
        return;
    }
#endif
    if (nt > 1 && is_product_alone(m, n, k)) {
        if (tid == 0) gemm_part(t, g, 0, m, 0, n, k, alpha, beta, tid);
    } else if (m >= n) {        /* the longer side: every thread packs the whole other operand */
        share(m, tid, nt, m >= 32 * nt ? 16 : 1, &lo, &hi);
        gemm_part(t, g, lo, hi, 0, n, k, alpha, beta, tid);
    } else {
        share(n, tid, nt, n >= 32 * nt ? 16 : 1, &lo, &hi);
        gemm_part(t, g, 0, m, lo, hi, k, alpha, beta, tid);
    }
}

#ifdef HORN_X86
/* Pack the panels of the products among some instructions from the present b: a thread's part. */
static void pack_all(const tape_t *t, int32_t first, int32_t last, int tid, int nt) {
    int count = 0;
    for (int32_t i = first; i < last; i++) {
        const gemm_t *g = t->ins[i].gemm;
        if (g && g->panels && count++ % nt == tid)
            WIDE->pack((const float *)g->b.data, g->b.stride[0], g->b.stride[1], resolve(t, g->n),
                       resolve(t, g->k), g->panels);
    }
}

/* Products of one a with the panels of several b. */
static void run_packed(const tape_t *t, const ins_t *ins, int n, int tid, int nt) {
    const gemm_t *g = ins->gemm;
    const int64_t m = resolve(t, g->m), k = resolve(t, g->k);
    wide_part_t part[MAX_STACKED];
    int64_t n_panels = 0, columns = 0, lo, hi, first = 0, past = m;
    for (int i = 0; i < n; i++) {
        const gemm_t *h = ins[i].gemm;
        part[i] = (wide_part_t){h->panels, (float *)h->c.data, h->c.ld, resolve(t, h->n),
                                (float)value_of(t, h->alpha), (float)value_of(t, h->beta)};
        n_panels += (part[i].n + WIDE->panel - 1) / WIDE->panel; columns += part[i].n;
    }
    if (m <= 0 || !columns) return;
    if (nt > 1 && is_product_alone(m, columns, k)) { nt = 1; if (tid) return; }
    lo = 0; hi = n_panels;
    if (m > columns) share(m, tid, nt, m >= 32 * nt ? 16 : 1, &first, &past);
    else share(n_panels, tid, nt, 1, &lo, &hi);
    if (past <= first) return;
    for (int i = 0; i < n; i++) part[i].c += first * part[i].ldc;
    WIDE->packed((const float *)g->a.data + first * g->a.stride[0], g->a.stride[0], g->a.stride[1],
                 past - first, k, part, n, lo, hi, g->zeros, t->packs[tid]);
}
#endif

void pack_some(const tape_t *t, int32_t first, int32_t last, int tid, int nt) {
#ifdef HORN_X86
    pack_all(t, first, last, tid, nt);
#endif
}

void tape_pack(tape_t *t, int32_t first, int32_t last) {
    pack_some(t, first, last, 0, 1);
    t->packed = 1;
}

/* The part [lo, hi) along an axis of a loop, in the room of d and of as many views. */
void bind_part(const tape_t *t, const loop_t *l, domain_t *d, view_t *spare, int axis, int64_t lo,
               int64_t hi) {
    int nv = l->n_in + l->n_out;
    bind_loop(t, l, d);
    shift(d, nv, axis, lo); d->n[axis] = hi - lo;
    simplify(d, nv, spare);
}

static void run_loop(tape_t *t, const loop_t *l, int tid, int nt) {
    int nv = l->n_in + l->n_out;
    view_t few[2][FEW_VIEWS], *spare = l->room ? l->room + (2 * tid + 1) * nv : few[1];
    domain_t d = {.v = l->room ? l->room + 2 * tid * nv : few[0]};
    bind_loop(t, l, &d);
    simplify(&d, nv, spare);
    const int64_t parts = parts_of(l, &d, nt);
    if (parts == nt) {
        if (cut(l, &d, nv, tid, nt, nt)) BODIES[t->dtype].loop(t, l, &d, t->scratch[tid]);
        return;
    }
    for (int64_t part; (part = atomic_fetch_add(&t->taken, 1)) < parts;) {
        bind_loop(t, l, &d);
        simplify(&d, nv, spare);
        if (cut(l, &d, nv, part, parts, nt)) BODIES[t->dtype].loop(t, l, &d, t->scratch[tid]);
    }
}

/* Each thread's rows of the product, then the loop over them. */
static void run_gemm_loop(tape_t *t, const ins_t *ins, int tid, int nt) {
    const gemm_t *g = ins->gemm; const loop_t *l = ins->loop;
    int64_t m = resolve(t, g->m), n = resolve(t, g->n), k = resolve(t, g->k), lo, hi;
    double alpha = value_of(t, g->alpha), beta = value_of(t, g->beta);
    int nv = l->n_in + l->n_out;
    if (m <= 0 || n <= 0) return;
    if (ins->numpy) {
        if (tid == 0) t->numpy_gemm(t->owner, g, m, n, k, alpha, beta);
        wait_all(t, nt);
    }
    if (nt > 1 && is_product_alone(m, n, k)) { nt = 1; if (tid) return; }
#ifdef HORN_X86
    if (!ins->numpy && is_thin(t, g, k)) {
        share(m, tid, nt, m >= 32 * nt ? 12 : 1, &lo, &hi);
        THIN((const float *)g->a.data, g->a.stride[0], g->a.stride[1], (const float *)g->b.data,
             g->b.stride[0], g->b.stride[1], lo, hi, n, k, (float)alpha,
             (float)value_of(t, g->decay), g->v, g->ldv, g->w, g->ldw, g->rows, g->cols, g->bits,
             g->n_parts ? g : NULL, g->zeros == ZEROS_B, t->packs[tid]);
        return;
    }
#endif
    share(m, tid, nt, m >= 32 * nt ? 16 : 1, &lo, &hi);
    if (lo >= hi) return;
    if (!ins->numpy) gemm_part(t, g, lo, hi, 0, n, k, alpha, beta, tid);
    view_t few[2][FEW_VIEWS], *spare = l->room ? l->room + (2 * tid + 1) * nv : few[1];
    domain_t d = {.v = l->room ? l->room + 2 * tid * nv : few[0]};
    bind_part(t, l, &d, spare, 0, lo, hi);
    BODIES[t->dtype].loop(t, l, &d, t->scratch[tid]);
}

static void run_live(tape_t *t, const live_t *v) {
    int64_t n = resolve(t, v->n), count = 0;
    for (int64_t i = 0; i < n; i++) {
        const char *p = v->mask + i * v->stride * ITEM_SIZE[v->dtype];
        int on = v->dtype == F32 ? *(const float *)p != 0 : v->dtype == F64 ? *(const double *)p != 0
               : *(const uint8_t *)p != 0;
        v->list[count] = (int32_t)i;
        count += on;
        if ((i & 15) == 0) v->bits[i >> 4] = 0;
        v->bits[i >> 4] |= (uint16_t)(on << (i & 15));
    }
    t->dims[v->dim] = count;
}

static void run_windows(tape_t *t, const conv_t *g, int tid, int nt) {
    BODIES[t->dtype].windows(t, g, 0, tid, nt);
    wait_all(t, nt);
    BODIES[t->dtype].windows(t, g, 1, tid, nt);
    if (g->kind == 0) return;
    wait_all(t, nt);
    BODIES[t->dtype].windows(t, g, 2, tid, nt);
}

/* ---- threads: one region per run, a barrier after each instruction ---- */
static inline void relax(void) {
#ifdef HORN_X86
    _mm_pause();
#endif
}

/* Wait until *word differs from seen: spin while threads do not outnumber cores, yield, sleep. */
static void wait_change(tape_t *t, atomic_int *word, int seen, atomic_int *sleepers, int yields) {
    for (int i = 0; i < t->spin; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        relax();
    }
    for (int i = 0; i < yields; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        sched_yield();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(sleepers, 1);
    pthread_mutex_unlock(&t->lock);
}

static void announce(tape_t *t, atomic_int *word, atomic_int *sleepers) {
    atomic_fetch_add(word, 1);
    if (atomic_load(sleepers) > 0) {
        pthread_mutex_lock(&t->lock);
        pthread_cond_broadcast(&t->wake);
        pthread_mutex_unlock(&t->lock);
    }
}

void wait_all(tape_t *t, int nt) {
    if (nt == 1) return;
    int seen = atomic_load_explicit(&t->generation, memory_order_acquire);
    if (atomic_fetch_add(&t->arrived, 1) == nt - 1) {
        atomic_store(&t->arrived, 0);
        atomic_store(&t->taken, 0);
        announce(t, &t->generation, &t->sleepers);
    } else {
        wait_change(t, &t->generation, seen, &t->sleepers, 200);
    }
}

/* Sums are made for 16 samples at least, one vector. */
static int are_windows_alone(const conv_t *g) {
    return g->n_groups * g->n_r * g->n_rows * ((g->rows.fixed + 15) / 16) < 4096;
}

/* Whether the first thread alone executes an instruction, whatever the extents of this run: then it
 * goes on to the next of this kind without a barrier. A product with packed panels is none: it is
 * computed with those that follow it, which all threads divide if they are large together. */
static int is_solo(const tape_t *t, const ins_t *ins) {
    const gemm_t *g = ins->gemm; const loop_t *l = ins->loop;
    switch (ins->kind) {
    case K_GEMM: return !(t->packed && g->panels)
                        && is_product_alone(g->m.fixed, g->n.fixed, g->k.fixed);
    case K_LOOP:
        return !l->indptr && is_loop_alone(l->extent[0].fixed * l->extent[1].fixed
                                           * l->extent[2].fixed, l->n_ops);
    case K_DRAW: return are_numbers_alone(ins->draw->rows.fixed, ins->draw->neurons.fixed);
    case K_LOAD: return ins->load->out_dtype != t->dtype
                        || are_numbers_alone(ins->load->rows.fixed, ins->load->cols.fixed);
    case K_LIVE: return 1;
    case K_WINDOWS: return are_windows_alone(ins->conv);
    case K_POOL: return ins->pool->ptr[ins->pool->n_groups] * ins->pool->rows.fixed < 16384;
    case K_RANK: return ins->rank->rows.fixed * ins->rank->neurons.fixed < 1024;
    }
    return 0;
}

void run_all(tape_t *t, int tid, int nt) {
    /* Read once: when a thread comes back from the last barrier, the next run may have begun. */
    const int32_t first = t->first, last = t->last;
    for (int32_t i = first; i < last; i++) {
        ins_t *ins = &t->ins[i];
        const int solo = nt > 1 && is_solo(t, ins);
        int64_t start = t->profile ? now_ns() : 0;
#ifdef HORN_X86
        if (t->packed && ins->kind == K_GEMM && ins->gemm->panels) {
            const int more = ins->gemm->followers, n = 1 + (more < last - 1 - i ? more : last - 1 - i);
            run_packed(t, ins, n, tid, nt);
            wait_all(t, nt);
            if (t->profile && tid == 0) ins->ns += now_ns() - start;
            i += n - 1;
            continue;
        }
#endif
        if (!solo || tid == 0) switch (ins->kind) {
        case K_GEMM: run_gemm(t, ins, tid, nt); break;
        case K_LOOP:
            if (ins->bound) BODIES[t->dtype].loop(t->whole, ins->loop, ins->bound, t->scratch[tid]);
            else run_loop(t, ins->loop, tid, nt);
            break;
        case K_GEMM_LOOP: run_gemm_loop(t, ins, tid, nt); break;
        case K_DRAW: BODIES[t->dtype].draw(t, ins->draw, tid, nt); break;
        case K_LOAD: BODIES[t->dtype].load(t, ins->load, tid, nt); break;
        case K_LIVE: if (tid == 0) run_live(t, ins->live); break;
        case K_WINDOWS: run_windows(t, ins->conv, solo ? 0 : tid, solo ? 1 : nt); break;
        case K_POOL: BODIES[t->dtype].pools(t, ins->pool, solo ? 0 : tid, solo ? 1 : nt); break;
        case K_RANK:
            BODIES[t->dtype].ranks(t, ins->rank, t->scratch[tid], solo ? 0 : tid, solo ? 1 : nt);
            break;
        }
        if (!solo || i + 1 == last || !is_solo(t, ins + 1)) wait_all(t, nt);
        if (t->profile && tid == 0) ins->ns += now_ns() - start;
    }
}

static void *work(void *arg) {
    worker_t *w = (worker_t *)arg; tape_t *t = w->tape;
    int seen = 0;
    for (;;) {
        wait_change(t, &t->go, seen, &t->sleepers_go, 50);
        seen++;
        if (atomic_load(&t->stop)) return NULL;
        if (t->work) t->work(t, t->of, w->tid);
        else run_all(t, w->tid, t->n_threads);
    }
}

int start_threads(tape_t *t) {
    free(t->worker); t->n_workers = 0;      /* after a fork: the parent's threads, none of them here */
    t->pid = getpid();
    atomic_store(&t->stop, 0); atomic_store(&t->go, 0); atomic_store(&t->sleepers_go, 0);
    atomic_store(&t->arrived, 0); atomic_store(&t->taken, 0); atomic_store(&t->generation, 0); atomic_store(&t->sleepers, 0);
    pthread_mutex_init(&t->lock, NULL); pthread_cond_init(&t->wake, NULL);
    t->worker = (worker_t *)calloc(t->n_threads, sizeof(worker_t));
    if (!t->worker) return -1;
    for (int i = 1; i < t->n_threads; i++) {
        t->worker[i] = (worker_t){.tape = t, .tid = i};
        if (pthread_create(&t->worker[i].thread, NULL, work, &t->worker[i])) {
            stop_threads(t);
            return -1;
        }
        t->n_workers++;
    }
    return 0;
}

void stop_threads(tape_t *t) {
    if (!t->worker) return;
    if (t->pid == getpid()) {
        atomic_store(&t->stop, 1);
        announce(t, &t->go, &t->sleepers_go);
        for (int i = 1; i <= t->n_workers; i++) pthread_join(t->worker[i].thread, NULL);
        pthread_mutex_destroy(&t->lock); pthread_cond_destroy(&t->wake);
    }
    free(t->worker); t->worker = NULL; t->n_workers = 0;
}

/* Run on so many threads (1 or all), each of which runs run_all, or other work. */
static void run_on(tape_t *t, int n_threads) {
    int before = 1;
    if (t->blas_get) {
        before = ((int (*)(void))t->blas_get)();
        if (before != 1) ((void (*)(int))t->blas_set)(1);
    }
    if (n_threads > 1) announce(t, &t->go, &t->sleepers_go);
    if (t->work) t->work(t, t->of, 0);
    else run_all(t, 0, n_threads);
    if (before != 1) ((void (*)(int))t->blas_set)(before);
}

void tape_run(tape_t *t, int32_t first, int32_t last, int n_threads) {
    t->first = first; t->last = last; t->work = NULL;
    run_on(t, n_threads);
}

void tape_run_work(tape_t *t, void (*work)(tape_t *, void *, int), void *of, int n_threads) {
    t->work = work; t->of = of;
    run_on(t, n_threads);
    t->work = NULL;
}

void tape_free(tape_t *t) {
    stop_threads(t);
    free(t->ins);
    if (t->scratch) for (int i = 0; i < t->n_threads; i++) free(t->scratch[i]);
    if (t->packs) for (int i = 0; i < t->n_threads; i++) free(t->packs[i]);
    free(t->packs); free(t->scratch); free(t->panel);
}
