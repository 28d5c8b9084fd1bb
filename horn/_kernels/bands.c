/* Steps of sequences divided among threads by rows of the batch, where no instruction of a step mixes
 * rows: each thread does all steps for its own rows (its band) and waits for nobody between them.
 *
 * A band has copies of the instructions: its pointers are at its own step. Loops are bound once for
 * all steps; then a step sets pointers and calls bodies. Sums are those of the whole, to the bit:
 * each row goes through the same messages in the same order, whoever does it.
 */
#include <stdlib.h>
#include <string.h>

#include "bands.h"
#include "products.h"

/* Rows that a thread needs at least: below, a product reads all weights for too few. */
#define ROWS_PER_THREAD 4
/* Multiplications of a step from which on threads divide its products, if they cannot divide rows. */
#define WORK_PER_STEP 4000000

typedef struct {
    char **at; char *const *from;       /* in the band's instruction, and in the tape's */
    int64_t row;                        /* bytes from one row to the next; 0 where it is bound */
    const moving_t *moving;             /* NULL: it does not move */
    int64_t offset, by;                 /* by: the step of this run, from step to step */
} pointer_t;

typedef struct { const void *from; void *to; int64_t size; } copied_t;
typedef struct { load_t *load; const stepped_t *stepped; } reader_t;
/* The part of a loop: the axis of its rows, where its views are bound, room for as many views, and
 * the copies of its draws. */
typedef struct { int axis; const loop_t *loop; view_t *view, *spare; drawn_t **drawn; } part_t;

typedef struct {
    tape_t tape;
    int64_t dims[MAX_DIMS];
    int n_pointers, n_copied, n_readers, n_blocks;
    pointer_t *pointer;
    copied_t *copied;
    reader_t *reader;
    part_t *part;
    void **block;
} band_t;

struct bands_s {
    int32_t first, last, dim, n_threads, align, is_possible;
    int64_t work;               /* multiplications of a row in a step */
    band_t *band;
    /* the run */
    int64_t steps, first_step;
    int32_t reverse, packs, used;
};

/* ---- the pointers of an instruction ---- */
static int64_t with_pointer(pointed_t *found, int64_t n, const void *at, int64_t row,
                            int is_written) {
    if (!*(char *const *)at) return n;
    if (found) found[n] = (pointed_t){(char **)at, row, is_written};
    return n + 1;
}

/* Lists of places (indices, live neurons) and the sources of loads stay, or are bound anew. */
int64_t pointers_of(const ins_t *ins, int dtype, pointed_t *found) {
#define POINTER(at, row, is_written) n = with_pointer(found, n, &(at), row, is_written)
    const int64_t size = ITEM_SIZE[dtype];
    int64_t n = 0;
    if (ins->gemm) {
        const gemm_t *g = ins->gemm;
        POINTER(g->a.data, g->a.stride[0] * size, 0);
        POINTER(g->b.data, 0, 0);
        POINTER(g->c.data, g->c.stride[0] * size, 1);
        POINTER(g->v, 0, 1);
        POINTER(g->w, 0, !g->live);
        for (int j = 0; j < g->n_parts; j++) POINTER(g->part[j], 0, 0);
    }
    if (ins->loop) {
        const loop_t *l = ins->loop;
        for (int j = 0; j < l->n_in + l->n_out; j++) {
            const view_t *v = &l->view[j];
            if (v->dtype < IOTA) POINTER(v->data, 0, j >= l->n_in);
            else if (v->dtype == DRAWN) POINTER(v->drawn->samples, 0, 0);
        }
    }
    if (ins->conv) {
        const conv_t *g = ins->conv;
        POINTER(g->x, 0, 0);
        POINTER(g->w, 0, 0);
        POINTER(g->out, 0, 1);
        POINTER(g->bias, 0, 0);
        POINTER(g->gate, 0, 0);
    }
    if (ins->pool) {
        const pool_t *g = ins->pool;
        POINTER(g->x, 0, 0);
        POINTER(g->out, 0, 1);
        POINTER(g->where, 0, 1);
        POINTER(g->upper, 0, 0);
        POINTER(g->gate, 0, 0);
    }
    if (ins->rank) {
        const rank_t *g = ins->rank;
        POINTER(g->in, g->from[0] * size, 0);
        POINTER(g->out, g->to[0] * size, 1);
    }
    if (ins->draw) {
        const draw_t *g = ins->draw;
        POINTER(g->out, g->stride[0] * ITEM_SIZE[g->dtype], 1);
        POINTER(g->samples, sizeof(uint64_t), 0);
    }
    if (ins->load) {
        const load_t *g = ins->load;
        POINTER(g->out, g->stride[0] * ITEM_SIZE[g->out_dtype], 1);
        POINTER(g->index, sizeof(int64_t), 0);
    }
    if (ins->live) POINTER(ins->live->mask, 0, 0);
#undef POINTER
    return n;
}

/* ---- what can be divided ---- */
static int is_of(extent_t e, int32_t dim) { return e.dim == dim; }

/* The axis of a loop that has the rows; -1 if none has, or several have, or it is folded. */
static int rows_axis(const loop_t *l, int32_t dim) {
    int found = -1;
    for (int a = 0; a < 3; a++)
        if (is_of(l->extent[a], dim)) {
            if (found >= 0) return -1;
            found = a;
        }
    if (found < 0 || (l->reduce && l->axis == found) || (l->indptr && found != 2)) return -1;
    for (int k = 0; k < l->n_out; k++)          /* each row writes its own */
        if (!l->view[l->n_in + k].stride[found]) return -1;
    return found;
}

static int is_by_rows(const ins_t *ins, int32_t dim) {
    const gemm_t *g = ins->gemm;
    switch (ins->kind) {
    case K_GEMM:
        return !ins->numpy && !g->live && !g->v && is_of(g->m, dim) && !is_of(g->n, dim)
               && !is_of(g->k, dim) && g->alpha.per != dim && g->beta.per != dim;
    case K_LOOP: return rows_axis(ins->loop, dim) >= 0;
    case K_DRAW:
        return is_of(ins->draw->rows, dim) && !is_of(ins->draw->neurons, dim) && ins->draw->samples
               && ins->draw->below.per != dim;
    case K_RANK: return is_of(ins->rank->rows, dim) && !is_of(ins->rank->neurons, dim);
    case K_LOAD:
        return is_of(ins->load->rows, dim) && !is_of(ins->load->cols, dim)
               && ins->load->scale.per != dim;
    }
    return 0;
}

/* The dim that counts the rows of all these instructions, or -1. */
static int32_t dim_of_rows(const tape_t *t, int32_t first, int32_t last) {
    if (first >= last) return -1;
    const ins_t *ins = &t->ins[first];
    int32_t some[3] = {-1, -1, -1};
    if (ins->kind == K_GEMM) some[0] = ins->gemm->m.dim;
    if (ins->kind == K_DRAW) some[0] = ins->draw->rows.dim;
    if (ins->kind == K_LOAD) some[0] = ins->load->rows.dim;
    if (ins->kind == K_RANK) some[0] = ins->rank->rows.dim;
    if (ins->kind == K_LOOP) for (int a = 0; a < 3; a++) some[a] = ins->loop->extent[a].dim;
    for (int a = 0; a < 3; a++) {
        int fits = some[a] >= 0;
        for (int32_t i = first; fits && i < last; i++) fits = is_by_rows(&t->ins[i], some[a]);
        if (fits) return some[a];
    }
    return -1;
}

/* ---- making ---- */
static void *allocate(band_t *b, int64_t size) {
    void **more = (void **)realloc(b->block, (b->n_blocks + 1) * sizeof(void *));
    if (!more) return NULL;
    b->block = more;
    void *made = calloc(1, size > 0 ? size : 1);
    if (made) b->block[b->n_blocks++] = made;
    return made;
}

/* A copy of the struct, which is made again before each run: other code may have settled arrays. */
static void *copy_of(band_t *b, const void *from, int64_t size) {
    copied_t *more = (copied_t *)realloc(b->copied, (b->n_copied + 1) * sizeof(copied_t));
    if (!more) return NULL;
    b->copied = more;
    void *to = allocate(b, size);
    if (!to) return NULL;
    more[b->n_copied++] = (copied_t){from, to, size};
    return memcpy(to, from, size);
}

/* The pointers that move, by their places in memory; of one that moves twice the later last. */
typedef struct { char **pointer; const moving_t *moving; int64_t offset; } use_t;
typedef struct { use_t *use; int n_uses; const stepped_t *stepped; int n_stepped; } moves_t;

static int by_place(const void *a, const void *b) {
    const use_t *x = (const use_t *)a, *y = (const use_t *)b;
    if (x->pointer != y->pointer) return x->pointer < y->pointer ? -1 : 1;
    return (x->moving > y->moving) - (x->moving < y->moving);
}

static int sort_uses(moves_t *m, const moving_t *moving, int n_moving) {
    int n = 0;
    for (int i = 0; i < n_moving; i++) n += moving[i].uses.n;
    m->use = (use_t *)calloc(n + 1, sizeof(use_t));
    if (!m->use) return -1;
    for (int i = 0; i < n_moving; i++) {
        const uses_t *uses = &moving[i].uses;
        for (int j = 0; j < uses->n; j++)
            m->use[m->n_uses++] = (use_t){uses->pointer[j], &moving[i], uses->offset[j]};
    }
    qsort(m->use, n, sizeof(use_t), by_place);
    return 0;
}

/* Add a pointer of a copy, with its twin in the tape's instruction, that moves `row` bytes per
 * row. */
static int point_at(band_t *b, void *at, const void *from, int64_t row, const moves_t *moves) {
    pointer_t *more = (pointer_t *)realloc(b->pointer, (b->n_pointers + 1) * sizeof(pointer_t));
    if (!more) return -1;
    b->pointer = more;
    pointer_t *p = &more[b->n_pointers++];
    *p = (pointer_t){.at = (char **)at, .from = (char *const *)from, .row = row};
    int lo = 0, hi = moves->n_uses;     /* of those up to here the last */
    while (lo < hi) {
        const int middle = (lo + hi) / 2;
        if ((char *const *)moves->use[middle].pointer <= p->from) lo = middle + 1; else hi = middle;
    }
    if (lo && moves->use[lo - 1].pointer == p->from) {
        p->moving = moves->use[lo - 1].moving; p->offset = moves->use[lo - 1].offset;
    }
    return 0;
}

static int make_loop(band_t *b, const loop_t *l, int n, int tid, int32_t dim) {
    const int nv = l->n_in + l->n_out;
    ins_t *ins = &b->tape.ins[n];
    part_t *part = &b->part[n];
    loop_t *copy = (loop_t *)allocate(b, sizeof(loop_t));
    domain_t *bound = (domain_t *)allocate(b, sizeof(domain_t));
    part->view = (view_t *)copy_of(b, l->view, nv * sizeof(view_t));
    part->spare = (view_t *)allocate(b, nv * sizeof(view_t));
    part->drawn = (drawn_t **)allocate(b, nv * sizeof(drawn_t *));
    if (!copy || !bound || !part->view || !part->spare || !part->drawn) return -1;
    *copy = *l;
    if (l->room) copy->room = l->room + 2 * tid * nv;
    part->axis = rows_axis(l, dim); part->loop = l;
    bound->v = part->view;
    ins->loop = copy; ins->bound = bound;
    for (int k = 0; k < nv; k++)
        if (l->view[k].dtype == DRAWN) {
            part->drawn[k] = (drawn_t *)copy_of(b, l->view[k].drawn, sizeof(drawn_t));
            if (!part->drawn[k]) return -1;
        }
    return 0;
}

/* Let the copies of an instruction, which are those from `first` on, have its pointers. */
static int point_all(band_t *b, const ins_t *from, int dtype, int first, const moves_t *moves) {
    const int64_t n = pointers_of(from, dtype, NULL);
    pointed_t *found = (pointed_t *)malloc((n + 1) * sizeof(pointed_t));
    if (!found) return -1;
    pointers_of(from, dtype, found);
    int failed = 0;
    for (int64_t k = 0; k < n && !failed; k++)
        for (int i = first; i < b->n_copied; i++) {
            const copied_t *c = &b->copied[i];
            const int64_t offset = (char *)found[k].at - (const char *)c->from;
            if (offset < 0 || offset >= c->size) continue;
            failed = point_at(b, (char *)c->to + offset, found[k].at, found[k].row, moves);
            break;
        }
    free(found);
    return failed;
}

static int make_band(band_t *b, const tape_t *t, int32_t first, int32_t last, int tid, int32_t dim,
                     const moves_t *moves) {
    const int n = last - first;
    b->tape.ins = (ins_t *)allocate(b, n * sizeof(ins_t));
    b->part = (part_t *)allocate(b, n * sizeof(part_t));
    if (!b->tape.ins || !b->part) return -1;
    for (int i = 0; i < n; i++) {
        const ins_t *from = &t->ins[first + i];
        ins_t *ins = &b->tape.ins[i];
        const int before = b->n_copied;
        int failed = 0;
        *ins = *from; ins->ns = 0;
        switch (from->kind) {
        case K_GEMM: failed = !(ins->gemm = copy_of(b, from->gemm, sizeof(gemm_t))); break;
        case K_LOOP: failed = make_loop(b, from->loop, i, tid, dim); break;
        case K_DRAW: failed = !(ins->draw = copy_of(b, from->draw, sizeof(draw_t))); break;
        case K_RANK: failed = !(ins->rank = copy_of(b, from->rank, sizeof(rank_t))); break;
        case K_LOAD: failed = !(ins->load = copy_of(b, from->load, sizeof(load_t))); break;
        }
        if (failed || point_all(b, from, t->dtype, before, moves)) return -1;
        for (int j = 0; j < moves->n_stepped; j++)
            if (moves->stepped[j].number == first + i) {
                reader_t *more = (reader_t *)realloc(b->reader,
                                                     (b->n_readers + 1) * sizeof(reader_t));
                if (!more) return -1;
                b->reader = more;
                more[b->n_readers++] = (reader_t){ins->load, &moves->stepped[j]};
            }
    }
    return 0;
}

/* Whether neighbouring rows lie side by side: bands must not share a cache line. */
static int is_turned(const ins_t *ins) {
    return ins->kind == K_GEMM && !ins->gemm->c.row;
}

bands_t *bands_make(const tape_t *t, int32_t first, int32_t last, const moving_t *moving,
                    int n_moving, const stepped_t *stepped, int n_stepped) {
    moves_t moves = {NULL, 0, stepped, n_stepped};
    bands_t *s = (bands_t *)calloc(1, sizeof(bands_t));
    if (!s) return NULL;
    s->first = first; s->last = last; s->n_threads = t->n_threads; s->align = 1;
    s->dim = dim_of_rows(t, first, last);
    for (int32_t i = first; i < last; i++) {
        const gemm_t *g = t->ins[i].gemm;
        if (g) s->work += g->n.fixed * g->k.fixed;
        if (is_turned(&t->ins[i])) s->align = 64 / (int)ITEM_SIZE[t->dtype];
    }
    s->is_possible = s->dim >= 0;
    if (!s->is_possible) return s;
    s->band = (band_t *)calloc(t->n_threads, sizeof(band_t));
    int failed = !s->band || sort_uses(&moves, moving, n_moving);
    for (int tid = 0; !failed && tid < t->n_threads; tid++)
        failed = make_band(&s->band[tid], t, first, last, tid, s->dim, &moves);
    free(moves.use);
    if (failed) { bands_free(s); return NULL; }
    return s;
}

int bands_are(const bands_t *s, int32_t first, int32_t last) {
    return s->first == first && s->last == last;
}

void bands_free(bands_t *s) {
    if (!s) return;
    for (int tid = 0; s->band && tid < s->n_threads; tid++) {
        band_t *b = &s->band[tid];
        for (int i = 0; i < b->n_blocks; i++) free(b->block[i]);
        free(b->block); free(b->pointer); free(b->copied); free(b->reader);
    }
    free(s->band); free(s);
}

/* The number of threads that divide the rows of this run; 0: bands do not pay, or mix rows. */
int bands_threads(const tape_t *t, const bands_t *s) {
    if (!s->is_possible) return 0;
    const int64_t rows = t->dims[s->dim];
    const int64_t least = s->align > ROWS_PER_THREAD ? s->align : ROWS_PER_THREAD;
    if (rows >= least * t->n_threads) return t->n_threads;
    return t->n_threads == 1 || rows * s->work < WORK_PER_STEP ? 1 : 0;
}

/* Whether a step's products have so much work that threads divide each of them. */
int bands_share(const tape_t *t, const bands_t *s) {
    int64_t most = 0;
    for (int32_t i = s->first; i < s->last; i++) {
        const gemm_t *g = t->ins[i].gemm;
        if (g) most += resolve(t, g->m) * resolve(t, g->n) * resolve(t, g->k);
    }
    return most >= WORK_PER_STEP;
}

/* ---- running ---- */
static char *place_of(const tape_t *t, const moving_t *m, int64_t step) {
    return m->memory + m->unit * (m->first + (m->stays ? 0 : step))
                           * (m->dim < 0 ? 1 : t->dims[m->dim]);
}

/* A band's instructions for the rows [lo, hi), at the first step. */
static void begin(const tape_t *t, const bands_t *s, band_t *b, int tid, int64_t lo, int64_t hi) {
    tape_t *own = &b->tape;
    memcpy(b->dims, t->dims, MAX_DIMS * sizeof(int64_t));
    b->dims[s->dim] = hi - lo;
    own->dtype = t->dtype; own->n_threads = 1; own->n_ins = s->last - s->first;
    own->profile = t->profile; own->ilp64 = t->ilp64; own->dims = b->dims; own->scalars = t->scalars;
    own->sgemm = t->sgemm; own->dgemm = t->dgemm; own->scratch = t->scratch + tid;
    own->packs = t->packs ? t->packs + tid : NULL; own->wide = t->wide; own->packed = s->packs;
    own->whole = t; own->first = 0; own->last = own->n_ins;
    for (int i = 0; i < b->n_copied; i++)
        memcpy(b->copied[i].to, b->copied[i].from, b->copied[i].size);
    for (int i = 0; i < own->n_ins; i++) {
        const part_t *part = &b->part[i];
        if (!part->loop) continue;
        domain_t *d = own->ins[i].bound;
        const int nv = part->loop->n_in + part->loop->n_out;
        d->v = part->view;
        bind_part(t, part->loop, d, part->spare, part->axis, lo, hi);
        if (d->v != part->view) d->v = memcpy(part->view, d->v, nv * sizeof(view_t));
        for (int k = 0; k < nv; k++) if (part->drawn[k]) d->v[k].drawn = part->drawn[k];
    }
    const int64_t step = s->reverse ? s->steps - 1 : 0;
    for (int i = 0; i < b->n_pointers; i++) {
        pointer_t *p = &b->pointer[i];
        char *at = *p->at + p->row * lo;
        p->by = 0;
        if (p->moving) {        /* at: that of the step where the tape's instructions are */
            char *first = place_of(t, p->moving, step);
            at += first + p->offset - *p->from;
            p->by = place_of(t, p->moving, step + 1) - first;
        }
        *p->at = at;
        if (s->reverse) p->by = -p->by;
    }
}

static void run_band(const bands_t *s, band_t *b) {
    for (int64_t k = 0; k < s->steps; k++) {
        const int64_t step = s->reverse ? s->steps - 1 - k : k;
        if (k)
            for (int i = 0; i < b->n_pointers; i++) *b->pointer[i].at += b->pointer[i].by;
        for (int i = 0; i < b->n_readers; i++) {
            const stepped_t *from = b->reader[i].stepped;
            if (from->load)
                b->reader[i].load->source = from->base + (s->first_step + step) * from->stride;
        }
        run_all(&b->tape, 0, 1);
    }
}

/* A thread's part of the run. */
static void work(tape_t *t, void *of, int tid) {
    const bands_t *s = (const bands_t *)of;
    const int nt = s->used;
    int64_t lo, hi;
    if (s->packs) { pack_some(t, s->first, s->last, tid, nt); wait_all(t, nt); }
    share(t->dims[s->dim], tid, nt, s->align, &lo, &hi);
    if (hi > lo) {
        band_t *b = &s->band[tid];
        begin(t, s, b, tid, lo, hi);
        run_band(s, b);
        if (tid == 0 && t->profile)
            for (int i = 0; i < b->tape.n_ins; i++) {
                t->ins[s->first + i].ns += b->tape.ins[i].ns; b->tape.ins[i].ns = 0;
            }
    }
    wait_all(t, nt);
}

void bands_run(tape_t *t, bands_t *s, int64_t steps, int reverse, int64_t first_step, int packs,
               int n_threads) {
    s->steps = steps; s->reverse = reverse; s->first_step = first_step; s->packs = packs;
    s->used = n_threads;
    tape_run_work(t, work, s, n_threads);
}
