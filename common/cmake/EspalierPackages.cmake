# Every third-party package, found once, with the differences between Debian 12, Debian 13 and
# Homebrew settled here.
set(MPI_CXX_SKIP_MPICXX ON)
find_package(Threads REQUIRED)
find_package(Protobuf CONFIG QUIET)
if(NOT Protobuf_FOUND)
  find_package(Protobuf REQUIRED)
endif()
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # before yaml-cpp 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(MPI REQUIRED COMPONENTS C)
# Regular expressions and normal forms of Unicode. By hand: neither has a CMake package everywhere.
foreach(library PCRE2-8 UTF8PROC)
  string(TOLOWER ${library} name)
  string(REGEX REPLACE "-.*" "" header ${name})
  find_path(${library}_INCLUDE_DIR ${header}.h REQUIRED)
  find_library(${library}_LIBRARY ${name} REQUIRED)
  add_library(espalier::${header} UNKNOWN IMPORTED)
  set_target_properties(espalier::${header} PROPERTIES IMPORTED_LOCATION ${${library}_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${${library}_INCLUDE_DIR})
endforeach()
# HTTP. Debian and Homebrew build it as a library, whose classes have members by these options.
find_package(httplib CONFIG QUIET)
if(TARGET httplib::httplib)
  add_library(espalier::httplib ALIAS httplib::httplib)
else()
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
  add_library(espalier::httplib ALIAS PkgConfig::HTTPLIB)
endif()
# By hand: Debian's package config asks for OpenCL's headers, which nothing here needs.
find_path(DNNL_INCLUDE_DIR dnnl.h)
find_library(DNNL_LIBRARY dnnl)
if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
# Linux alone: macOS's allocator cannot be replaced by linking, and sanitizers bring their own.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT ESPALIER_SANITIZE)
  find_path(JEMALLOC_INCLUDE_DIR jemalloc/jemalloc.h)
  find_library(JEMALLOC_LIBRARY jemalloc)
  if(JEMALLOC_INCLUDE_DIR AND JEMALLOC_LIBRARY)
    add_library(jemalloc::jemalloc UNKNOWN IMPORTED)
    set_target_properties(jemalloc::jemalloc PROPERTIES IMPORTED_LOCATION ${JEMALLOC_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${JEMALLOC_INCLUDE_DIR})
  endif()
endif()
if(ESPALIER_TESTS)
  find_package(GTest REQUIRED)
endif()

# LibTorch's package sets global flags and links raw library paths; keep them inside one target.
if(ESPALIER_TORCH)
  set(saved_flags "${CMAKE_CXX_FLAGS}")
  find_package(Torch REQUIRED)
  set(CMAKE_CXX_FLAGS "${saved_flags}")
  add_library(espalier_torch INTERFACE)
  # PyTorch's own builds (2.5 and later) export parts of an older libstdc++, std::filesystem among
  # them, and a program that takes some from there and the rest from its own ends in a null pointer
  # (pytorch issue 133437). The loader takes the library that is named first.
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_libraries(espalier_torch INTERFACE -lstdc++)
  endif()
  target_link_libraries(espalier_torch INTERFACE ${TORCH_LIBRARIES})
  target_include_directories(espalier_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(espalier_torch INTERFACE ${torch_flags})
  # GCC 13 and 14 see writes behind the end of a vector<bool> in torch::autograd::Function::apply.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(espalier_torch INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
  endif()
endif()

add_library(espalier_mpi INTERFACE)
target_link_libraries(espalier_mpi INTERFACE MPI::MPI_C)
target_compile_definitions(espalier_mpi INTERFACE OMPI_SKIP_MPICXX)
