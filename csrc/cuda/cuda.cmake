# The CUDA kernels as part of the build: libxmc_cuda.so beside _core, compiled by csrc/cuda/build.sh.
#   -DXMC_CUDA=AUTO (default)  where nvcc is; a compiler that cannot build them costs a warning, not the build
#   -DXMC_CUDA=ON              they must be built
#   -DXMC_CUDA=OFF             without them
# AUTO leaves them out of development builds (XMC_INPLACE), sanitizer builds, and where no shell runs build.sh.
set(XMC_CUDA AUTO CACHE STRING "compile the CUDA kernels: AUTO, ON or OFF")
find_program(XMC_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)

set(cuda_wanted ${XMC_CUDA})
if(XMC_CUDA STREQUAL "AUTO")
  set(cuda_wanted OFF)
  if(XMC_NVCC AND UNIX AND NOT APPLE AND NOT XMC_INPLACE AND NOT XMC_SANITIZE)
    set(cuda_wanted ON)
  endif()
elseif(XMC_CUDA AND NOT XMC_NVCC)
  message(FATAL_ERROR "XMC_CUDA=${XMC_CUDA} needs nvcc: not found in PATH, CUDA_HOME or /usr/local/cuda")
endif()

if(cuda_wanted)
  set(cuda_library ${CMAKE_BINARY_DIR}/libxmc_cuda.so)
  set(cuda_command ${CMAKE_COMMAND} -E env XMC_NVCC=${XMC_NVCC} ${CMAKE_CURRENT_LIST_DIR}/build.sh ${cuda_library})
  if(XMC_CUDA STREQUAL "AUTO")
    list(APPEND cuda_command || ${CMAKE_COMMAND} -E echo
                "warning: nvcc could not compile the CUDA kernels, they are left out")
  endif()
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../*/*.cu
       ${CMAKE_CURRENT_LIST_DIR}/../*/*_cuda.h ${CMAKE_CURRENT_LIST_DIR}/../core/cuda.h)
  add_custom_command(OUTPUT ${cuda_library} COMMAND ${cuda_command}
                     DEPENDS ${cuda_sources} ${CMAKE_CURRENT_LIST_DIR}/build.sh VERBATIM)
  add_custom_target(xmc_cuda ALL DEPENDS ${cuda_library})
  install(FILES ${cuda_library} DESTINATION xmc_fast OPTIONAL)
endif()
