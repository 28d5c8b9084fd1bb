/* The loops for processors with AVX-512. */
#include "tape.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512dq,avx512bw,avx512vl")
#endif
#include "transpose.h"

#define LEVEL 2
#define BODY AVX512
#include "level.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
