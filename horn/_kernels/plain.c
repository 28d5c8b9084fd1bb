/* The loops for any processor. */
#include "tape.h"

#ifdef HORN_X86
#include <immintrin.h>
#endif

#define LEVEL 0
#define BODY PLAIN
#include "level.h"
