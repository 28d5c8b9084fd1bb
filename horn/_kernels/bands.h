/* Steps of sequences divided among threads by rows of the batch (bands.c). */
#ifndef HORN_BANDS_H
#define HORN_BANDS_H
#include "tape.h"

/* Arrays that move between runs or steps (moving.pxi). */
/* The pointers of a tape's instructions into an array, and their offsets from its start. */
typedef struct { char ***pointer; int64_t *offset; int n; } uses_t;
/* The step at which it begins, bytes of one row, or of one step; the rows of a step (-1: the unit is
 * a step's); whether it is of all steps. */
typedef struct {
    uses_t uses; char *memory; int64_t first, unit; int32_t dim, stays;
} moving_t;
typedef struct { load_t *load; const char *base; int64_t stride; int32_t number, columns; } stepped_t;

typedef struct bands_s bands_t;

#pragma GCC visibility push(hidden)
/* A pointer: where it is, the bytes from one row of the batch to the next where an instruction can be
 * divided by rows (bands.c; of loops 0: their parts are bound), whether the instruction writes there. */
typedef struct { char **at; int64_t row, is_written; } pointed_t;

/* The pointers of an instruction to numbers, which move with these. `found` NULL: only how many. */
int64_t pointers_of(const ins_t *ins, int dtype, pointed_t *found);

bands_t *bands_make(const tape_t *t, int32_t first, int32_t last, const moving_t *moving,
                    int n_moving, const stepped_t *stepped, int n_stepped);
void bands_free(bands_t *b);
int bands_are(const bands_t *b, int32_t first, int32_t last);
int bands_threads(const tape_t *t, const bands_t *b);
int bands_share(const tape_t *t, const bands_t *b);
void bands_run(tape_t *t, bands_t *b, int64_t steps, int reverse, int64_t first_step, int packs,
               int n_threads);
#pragma GCC visibility pop
#endif
