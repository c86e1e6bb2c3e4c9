// What nvcc knows of the C and C++ libraries in device code without being asked, for NVRTC, which knows none of it.
// It is included before every CUDA file. nvcc includes <cuda_runtime.h>, and with it the host's headers (CUDA C++
// Programming Guide, "C++ Language Support"); values are those of IEC 60559 and of the LP64 data model.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
typedef int64_t intmax_t;
typedef uint64_t uintmax_t;
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
typedef unsigned char uchar;

#define INFINITY (__builtin_bit_cast(float, 0x7f800000))
#define NAN (__builtin_bit_cast(float, 0x7fffffff))
#define HUGE_VALF INFINITY
#define HUGE_VAL (__builtin_bit_cast(double, 0x7ff0000000000000LL))

#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define FLT_DIG 6
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16

#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1L)
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MAX 9223372036854775807LL
#define LLONG_MIN (-LLONG_MAX - 1LL)
#define ULLONG_MAX 18446744073709551615ULL
#define INT8_MIN SCHAR_MIN
#define INT8_MAX SCHAR_MAX
#define UINT8_MAX UCHAR_MAX
#define INT16_MIN SHRT_MIN
#define INT16_MAX SHRT_MAX
#define UINT16_MAX USHRT_MAX
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define UINT32_MAX UINT_MAX
#define INT64_MIN LLONG_MIN
#define INT64_MAX LLONG_MAX
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX ULONG_MAX

#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

// math_constants.h comes with <cuda_runtime.h> too (crt/math_functions.hpp).
#if __has_include(<math_constants.h>)
#include <math_constants.h>
#else
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF HUGE_VAL
#define CUDART_PI_F 3.141592654f
#define CUDART_L2E_F 1.442695041f
#endif

#ifndef NULL
#define NULL 0
#endif
// A failing assertion ends a kernel on a GPU. Here it is left out, as NDEBUG does: it changes no result that holds.
#undef assert
#define assert(...) ((void)0)

namespace std {

using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::intptr_t;
using ::uintptr_t;
using ::size_t;
using ::ptrdiff_t;
typedef decltype(nullptr) nullptr_t;

template <typename T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  __host__ __device__ constexpr operator T() const { return v; }
  __host__ __device__ constexpr T operator()() const { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <typename T, typename U> struct is_same : false_type {};
template <typename T> struct is_same<T, T> : true_type {};
template <typename T, typename U> inline constexpr bool is_same_v = is_same<T, U>::value;
template <bool b, typename T, typename F> struct conditional { using type = T; };
template <typename T, typename F> struct conditional<false, T, F> { using type = F; };
template <bool b, typename T, typename F> using conditional_t = typename conditional<b, T, F>::type;
template <bool b, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { using type = T; };
template <bool b, typename T = void> using enable_if_t = typename enable_if<b, T>::type;
template <typename T> struct remove_reference { using type = T; };
template <typename T> struct remove_reference<T&> { using type = T; };
template <typename T> struct remove_reference<T&&> { using type = T; };
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> struct remove_const { using type = T; };
template <typename T> struct remove_const<const T> { using type = T; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> struct remove_volatile { using type = T; };
template <typename T> struct remove_volatile<volatile T> { using type = T; };
template <typename T> using remove_cv_t = remove_const_t<typename remove_volatile<T>::type>;
template <typename T> struct remove_cv { using type = remove_cv_t<T>; };
template <typename T> using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;
template <typename T> using decay_t = remove_cvref_t<T>;
template <typename T> struct decay { using type = decay_t<T>; };
template <typename T> struct remove_pointer { using type = T; };
template <typename T> struct remove_pointer<T*> { using type = T; };
template <typename T> using remove_pointer_t = typename remove_pointer<T>::type;
template <typename T> struct is_pointer : false_type {};
template <typename T> struct is_pointer<T*> : true_type {};
template <typename T> inline constexpr bool is_pointer_v = is_pointer<T>::value;
template <typename T> struct is_void : is_same<remove_cv_t<T>, void> {};
template <typename T> inline constexpr bool is_void_v = is_void<T>::value;
template <typename T> struct is_floating_point : bool_constant<is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, double>> {};
template <typename T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T, typename... U> inline constexpr bool is_any_of_v = (is_same_v<T, U> || ...);
template <typename T> struct is_integral
    : bool_constant<is_any_of_v<remove_cv_t<T>, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned,
                                long, unsigned long, long long, unsigned long long>> {};
template <typename T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> struct is_arithmetic : bool_constant<is_integral_v<T> || is_floating_point_v<T>> {};
template <typename T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T> struct is_signed : bool_constant<is_arithmetic_v<T> && (T(-1) < T(0))> {};
template <typename T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <typename T> struct is_unsigned : bool_constant<is_arithmetic_v<T> && !(T(-1) < T(0))> {};
template <typename T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <typename...> using void_t = void;

// std::move and std::forward NVRTC has by itself (--builtin-move-forward).
template <typename T> __host__ __device__ constexpr void swap(T& a, T& b) {
  T kept = move(a);
  a = move(b);
  b = move(kept);
}
template <typename T> __host__ __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <typename T> __host__ __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <typename T> __host__ __device__ constexpr const T& clamp(const T& v, const T& low, const T& high) {
  return v < low ? low : high < v ? high : v;
}

template <typename T, size_t n> struct array {
  T values[n];
  __host__ __device__ constexpr T& operator[](size_t i) { return values[i]; }
  __host__ __device__ constexpr const T& operator[](size_t i) const { return values[i]; }
  __host__ __device__ constexpr size_t size() const { return n; }
  __host__ __device__ constexpr T* data() { return values; }
  __host__ __device__ constexpr const T* data() const { return values; }
  __host__ __device__ constexpr T* begin() { return values; }
  __host__ __device__ constexpr T* end() { return values + n; }
  __host__ __device__ constexpr const T* begin() const { return values; }
  __host__ __device__ constexpr const T* end() const { return values + n; }
};
template <typename A, typename B> struct pair {
  A first;
  B second;
};

template <typename T> struct numeric_limits {
  static constexpr bool is_specialized = false;
};
#define ATTNSIM_INTEGER(T, LOW, HIGH)                                                   \
  template <> struct numeric_limits<T> {                                                \
    static constexpr bool is_specialized = true, is_integer = true, has_infinity = false; \
    static constexpr int digits = sizeof(T) * CHAR_BIT - (static_cast<T>(-1) < static_cast<T>(0)); \
    __host__ __device__ static constexpr T min() { return LOW; }                        \
    __host__ __device__ static constexpr T lowest() { return LOW; }                     \
    __host__ __device__ static constexpr T max() { return HIGH; }                       \
  };
ATTNSIM_INTEGER(bool, false, true)
ATTNSIM_INTEGER(char, CHAR_MIN, CHAR_MAX)
ATTNSIM_INTEGER(signed char, SCHAR_MIN, SCHAR_MAX)
ATTNSIM_INTEGER(unsigned char, 0, UCHAR_MAX)
ATTNSIM_INTEGER(short, SHRT_MIN, SHRT_MAX)
ATTNSIM_INTEGER(unsigned short, 0, USHRT_MAX)
ATTNSIM_INTEGER(int, INT_MIN, INT_MAX)
ATTNSIM_INTEGER(unsigned, 0, UINT_MAX)
ATTNSIM_INTEGER(long, LONG_MIN, LONG_MAX)
ATTNSIM_INTEGER(unsigned long, 0, ULONG_MAX)
ATTNSIM_INTEGER(long long, LLONG_MIN, LLONG_MAX)
ATTNSIM_INTEGER(unsigned long long, 0, ULLONG_MAX)
#undef ATTNSIM_INTEGER
#define ATTNSIM_FLOAT(T, PREFIX, INF, NOT, DIGITS)                                     \
  template <> struct numeric_limits<T> {                                               \
    static constexpr bool is_specialized = true, is_integer = false, has_infinity = true; \
    static constexpr int digits = DIGITS;                                              \
    __host__ __device__ static constexpr T min() { return PREFIX##_MIN; }              \
    __host__ __device__ static constexpr T lowest() { return -PREFIX##_MAX; }          \
    __host__ __device__ static constexpr T max() { return PREFIX##_MAX; }              \
    __host__ __device__ static constexpr T epsilon() { return PREFIX##_EPSILON; }      \
    __host__ __device__ static constexpr T infinity() { return INF; }                  \
    __host__ __device__ static constexpr T quiet_NaN() { return NOT; }                 \
  };
ATTNSIM_FLOAT(float, FLT, INFINITY, NAN, 24)
ATTNSIM_FLOAT(double, DBL, HUGE_VAL, __builtin_bit_cast(double, 0x7fffffffffffffffLL), 53)
#undef ATTNSIM_FLOAT

using ::abs;
using ::acos;
using ::ceil;
using ::cos;
using ::erf;
using ::exp;
using ::exp2;
using ::fabs;
using ::floor;
using ::fma;
using ::fmax;
using ::fmin;
using ::fmod;
using ::isfinite;
using ::isinf;
using ::isnan;
using ::log;
using ::log10;
using ::log1p;
using ::log2;
using ::pow;
using ::round;
using ::rsqrt;
using ::sin;
using ::sqrt;
using ::tan;
using ::tanh;
using ::trunc;

}  // namespace std
