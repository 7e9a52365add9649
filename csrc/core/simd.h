// Run-time choice of the instruction set: the one dispatch point of the package.
//
// A kernel lives in a file *.simd.cpp that CMake compiles once per level with XMC_SIMD_NS set to the level's
// name. The kernel's header declares a struct of function pointers and a table per level:
//
//   struct DotKernels { float (*dot)(const float*, const float*, int64_t); };
//   XMC_SIMD_TABLE(DotKernels, dot_kernels)           // dot_kernels() -> the table of the active level
//
// and the .simd.cpp defines it:
//
//   namespace xmc::<folder>::XMC_SIMD_NS { const DotKernels dot_kernels_table = {&dot}; }
//
// Inside *.simd.cpp use core/vec.h and plain loops. Keep std templates and other inline code out of those
// files: the linker may keep the AVX copy of a shared inline function for the whole program.
#pragma once

namespace xmc {

enum class SimdLevel { baseline = 0, avx2 = 1, avx512 = 2, neon = 3 };

SimdLevel simd_supported();              // the best level of this CPU that was compiled in
SimdLevel simd_level();                  // the active one: XMC_SIMD if set, else the best
void force_simd_level(SimdLevel level);  // throws std::invalid_argument if the CPU lacks it
const char* simd_name(SimdLevel level);
SimdLevel simd_from_name(const char* name);  // throws std::invalid_argument

}  // namespace xmc

#if defined(XMC_X86)
#define XMC_SIMD_TABLE(Type, name)     \
  namespace baseline {                 \
  extern const Type name##_table;      \
  }                                    \
  namespace avx2 {                     \
  extern const Type name##_table;      \
  }                                    \
  namespace avx512 {                   \
  extern const Type name##_table;      \
  }                                    \
  inline const Type& name() {          \
    switch (::xmc::simd_level()) {     \
      case ::xmc::SimdLevel::avx512:   \
        return avx512::name##_table;   \
      case ::xmc::SimdLevel::avx2:     \
        return avx2::name##_table;     \
      default:                         \
        return baseline::name##_table; \
    }                                  \
  }
#elif defined(XMC_ARM64)
#define XMC_SIMD_TABLE(Type, name)                                                                      \
  namespace baseline {                                                                                  \
  extern const Type name##_table;                                                                       \
  }                                                                                                     \
  namespace neon {                                                                                      \
  extern const Type name##_table;                                                                       \
  }                                                                                                     \
  inline const Type& name() {                                                                           \
    return ::xmc::simd_level() == ::xmc::SimdLevel::neon ? neon::name##_table : baseline::name##_table; \
  }
#else
#define XMC_SIMD_TABLE(Type, name) \
  namespace baseline {             \
  extern const Type name##_table;  \
  }                                \
  inline const Type& name() {      \
    return baseline::name##_table; \
  }
#endif
