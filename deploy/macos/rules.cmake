# What `check` puts into the build right after project(): link.py in place of archiver and linker,
# and the kit's headers in place of all packages. With ESPALIER_QUICK nothing is linked, see the end.
set(ESPALIER_MACOS ${CMAKE_CURRENT_LIST_DIR})
set(link "python3 ${ESPALIER_MACOS}/link.py")
set(archive "${link} archive <TARGET> <OBJECTS>")
set(program "${link} program <TARGET> <OBJECTS> <LINK_LIBRARIES>")
if(ESPALIER_QUICK)
  set(archive "${CMAKE_COMMAND} -E touch <TARGET>")
  set(program ${archive})
  string(APPEND CMAKE_CXX_COMPILE_OBJECT " && ${CMAKE_COMMAND} -E touch <OBJECT>")
endif()
foreach(language C CXX)
  set(CMAKE_${language}_CREATE_STATIC_LIBRARY "${archive}")
  unset(CMAKE_${language}_ARCHIVE_CREATE)
  unset(CMAKE_${language}_ARCHIVE_APPEND)
  unset(CMAKE_${language}_ARCHIVE_FINISH)
  set(CMAKE_${language}_LINK_EXECUTABLE "${program}")
endforeach()

# espalier_kit_package(PACKAGE FOLDER TARGET...): find_package(PACKAGE) finds these targets, with
# the headers of that folder of the kit.
function(espalier_kit_package package folder)
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/${package}Config.cmake "")
  foreach(target ${ARGN})
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    if(folder)
      set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
                            ${ESPALIER_MACOS_KIT}/${folder})
    endif()
  endforeach()
endfunction()

espalier_kit_package(Threads "" Threads::Threads)
espalier_kit_package(absl include absl::status absl::statusor absl::strings absl::time absl::span
                     absl::synchronization absl::flat_hash_map)
espalier_kit_package(Protobuf include protobuf::libprotobuf)
espalier_kit_package(gRPC include gRPC::grpc++)
espalier_kit_package(prometheus-cpp include prometheus-cpp::pull)
espalier_kit_package(SQLite3 "" SQLite::SQLite3)  # macOS has it
target_include_directories(SQLite::SQLite3 INTERFACE ${ESPALIER_MACOS_KIT}/include)
espalier_kit_package(nlohmann_json include nlohmann_json::nlohmann_json)
espalier_kit_package(CLI11 include CLI11::CLI11)
espalier_kit_package(httplib include httplib::httplib)
espalier_kit_package(spdlog include spdlog::spdlog)
espalier_kit_package(yaml-cpp include yaml-cpp::yaml-cpp)
espalier_kit_package(MPI include MPI::MPI_C)
espalier_kit_package(GTest include GTest::gtest GTest::gtest_main GTest::gmock)
espalier_kit_package(OpenSSL openssl OpenSSL::Crypto OpenSSL::SSL)
espalier_kit_package(OpenMP openmp OpenMP::OpenMP_CXX)
set_target_properties(OpenMP::OpenMP_CXX PROPERTIES INTERFACE_COMPILE_OPTIONS "-Xclang;-fopenmp")
espalier_kit_package(Torch torch)
set(TORCH_INCLUDE_DIRS ${ESPALIER_MACOS_KIT}/torch
    ${ESPALIER_MACOS_KIT}/torch/torch/csrc/api/include)
set(spdlog_FOUND TRUE)
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL SPDLOG_COMPILED_LIB)

# Those without a CMake package are looked for by their files. No library is read: any file will do.
foreach(library PCRE2-8 UTF8PROC)
  set(${library}_INCLUDE_DIR ${ESPALIER_MACOS_KIT}/include CACHE PATH "of the kit")
  set(${library}_LIBRARY ${ESPALIER_MACOS_KIT}/.complete CACHE FILEPATH "of the kit")
endforeach()

# What makes sources runs here.
foreach(tool protoc grpc_cpp_plugin)
  find_program(ESPALIER_${tool} ${tool} REQUIRED NO_CMAKE_FIND_ROOT_PATH)
endforeach()
add_executable(protobuf::protoc IMPORTED GLOBAL)
set_target_properties(protobuf::protoc PROPERTIES IMPORTED_LOCATION ${ESPALIER_protoc})
add_executable(gRPC::grpc_cpp_plugin IMPORTED GLOBAL)
set_target_properties(gRPC::grpc_cpp_plugin PROPERTIES
                      IMPORTED_LOCATION ${ESPALIER_grpc_cpp_plugin})

# With ESPALIER_QUICK sources are read and no objects made, and all targets that are free of LibTorch
# share one precompiled header: a fifth of the time, but an include that is missing is not seen.
function(espalier_make_kit_header)
  espalier_make_header(
    espalier_kit_header
    HEADERS <algorithm> <atomic> <chrono> <deque> <filesystem> <functional> <map> <memory> <optional>
            <set> <sstream> <string> <thread> <utility> <variant> <vector>
            <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
            <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/strings/str_split.h>
            <absl/synchronization/mutex.h> <absl/time/time.h> <CLI/CLI.hpp> <gmock/gmock.h>
            <grpcpp/grpcpp.h> <gtest/gtest.h> <nlohmann/json.hpp> <espalier/v1/agent.grpc.pb.h>
            <espalier/v1/journal.pb.h> <espalier/v1/operator.grpc.pb.h>
            <espalier/v1/worker.grpc.pb.h>
    DEPS espalier_proto_grpc absl::statusor CLI11::CLI11 GTest::gmock nlohmann_json::nlohmann_json)
endfunction()

# What is linked is looked at again when the rules for it change.
function(espalier_watch_link target)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${ESPALIER_MACOS}/link.py
                                                ${ESPALIER_MACOS}/symbols.txt)
endfunction()

function(espalier_quicken target)
  get_target_property(kind ${target} TYPE)
  if(NOT kind MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$" OR target MATCHES "_header$")
    return()
  endif()
  target_compile_options(${target} PRIVATE "SHELL:-Xclang -fsyntax-only")
  get_target_property(links ${target} LINK_LIBRARIES)
  get_target_property(shares ${target} PRECOMPILE_HEADERS_REUSE_FROM)
  foreach(link ${links})  # what is made with OpenMP cannot share a header that is made without
    if(TARGET ${link})
      get_target_property(passed_on ${link} INTERFACE_LINK_LIBRARIES)
      list(APPEND links ${passed_on})
    endif()
  endforeach()
  if("espalier_options" IN_LIST links AND NOT shares MATCHES "^espalier_torch_"
     AND NOT "OpenMP::OpenMP_CXX" IN_LIST links)
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM espalier_kit_header)
    add_dependencies(${target} espalier_kit_header)
  endif()
endfunction()

function(espalier_change_targets)
  if(ESPALIER_QUICK)
    espalier_make_kit_header()
  endif()
  set(pending ${CMAKE_SOURCE_DIR})
  while(pending)
    list(POP_FRONT pending folder)
    get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    list(APPEND pending ${below})
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
      if(ESPALIER_QUICK)
        espalier_quicken(${target})
      else()
        espalier_watch_link(${target})
      endif()
    endforeach()
  endwhile()
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL espalier_change_targets)
