# CMake's toolchain file of `check`: builds for arm64 macOS with the compiler of the kit.
# rules.cmake has the rest.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_VERSION 23.0)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "the kit's compiler says it")
set(CMAKE_C_COMPILER ${ESPALIER_MACOS_KIT}/bin/c)
set(CMAKE_CXX_COMPILER ${ESPALIER_MACOS_KIT}/bin/c++)
set(CMAKE_INSTALL_NAME_TOOL /bin/true)
set(CMAKE_AR /bin/true)
set(CMAKE_RANLIB /bin/true)
# Nothing can be linked, so nothing is tried.
foreach(language C CXX)
  set(CMAKE_${language}_COMPILER_WORKS TRUE)
  set(CMAKE_${language}_ABI_COMPILED TRUE)
endforeach()
set(CMAKE_SIZEOF_VOID_P 8)
# Not optimised, each object names what it takes from others.
set(CMAKE_CXX_FLAGS_INIT "-O0 -pthread -isystem ${CMAKE_CURRENT_LIST_DIR}/stubs")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ESPALIER_MACOS_KIT)
