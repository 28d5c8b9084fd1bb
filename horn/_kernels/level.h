/* The bodies of one processor level, of both dtypes. LEVEL, BODY and the target come from the
 * includer, which is one file per level so that they compile side by side.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

#if defined(__clang__)
#define IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define IVDEP _Pragma("GCC ivdep")
#endif

#include "functions.h"

#define REAL float
#define IS_F32 1
#define K(name) PASTE(name, PASTE(_f32_l, LEVEL))
#include "strips.h"
#undef REAL
#undef IS_F32
#undef K
#define REAL double
#define IS_F32 0
#define K(name) PASTE(name, PASTE(_f64_l, LEVEL))
#include "strips.h"
#undef REAL
#undef IS_F32
#undef K

#define OF(name, type) PASTE(name, PASTE(type, LEVEL))
#define BODIES_OF(type) {OF(loop, type), OF(draw, type), OF(load, type), OF(windows, type), \
                       OF(pools, type), OF(ranks, type)}
const body_t BODY[2] = {BODIES_OF(_f32_l), BODIES_OF(_f64_l)};
