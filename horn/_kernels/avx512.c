/* The loops for processors with AVX-512. */
#include "tape.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "target_avx512.h"
#include "transpose.h"

#define LEVEL 2
#define BODY AVX512
#include "level.h"
#include "target_end.h"
#endif
