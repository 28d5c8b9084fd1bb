/* The loops for processors with AVX2. */
#include "tape.h"

#ifdef HORN_X86
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "target_avx2.h"
#define LEVEL 1
#define BODY AVX2
#include "level.h"
#include "target_end.h"
#endif
