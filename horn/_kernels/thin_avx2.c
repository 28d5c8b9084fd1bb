/* Gradients of thin batches with their updates, for processors with AVX2. */
#include "products.h"

#ifdef HORN_X86
#include <immintrin.h>

#include "target_avx2.h"
#define LEVEL 1
#define THIN_UPDATE thin_update_avx2
#include "thin.h"
#include "target_end.h"
#endif
