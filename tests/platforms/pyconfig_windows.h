// What Python's headers need to know about 64-bit Windows, to compile the bindings without a Python for Windows. Only
// for tests/platforms/cross.sh: wheels are built on Windows itself.
#pragma once

#define MS_WINDOWS
#define MS_WIN32
#define MS_WIN64
#define NT_THREADS
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED 1
#define HAVE_SSIZE_T 1
#define HAVE_STDDEF_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define STDC_HEADERS 1
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_FLOAT 4
#define SIZEOF_DOUBLE 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_HKEY 8
#define SIZEOF_PID_T 4
#define ALIGNOF_SIZE_T 8
#define ALIGNOF_MAX_ALIGN_T 8
#define PLATLIBDIR "lib"
