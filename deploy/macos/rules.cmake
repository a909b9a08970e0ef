# What `check` puts into the build right after project(): link.py in place of archiver and linker,
# and the kit's headers in place of all packages.
set(link "python3 ${CMAKE_CURRENT_LIST_DIR}/link.py")
foreach(language C CXX)
  set(CMAKE_${language}_CREATE_STATIC_LIBRARY "${link} archive <TARGET> <OBJECTS>")
  unset(CMAKE_${language}_ARCHIVE_CREATE)
  unset(CMAKE_${language}_ARCHIVE_APPEND)
  unset(CMAKE_${language}_ARCHIVE_FINISH)
  set(CMAKE_${language}_LINK_EXECUTABLE "${link} program <TARGET> <OBJECTS> <LINK_LIBRARIES>")
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

# What makes sources runs here.
foreach(tool protoc grpc_cpp_plugin)
  find_program(ESPALIER_${tool} ${tool} REQUIRED NO_CMAKE_FIND_ROOT_PATH)
endforeach()
add_executable(protobuf::protoc IMPORTED GLOBAL)
set_target_properties(protobuf::protoc PROPERTIES IMPORTED_LOCATION ${ESPALIER_protoc})
add_executable(gRPC::grpc_cpp_plugin IMPORTED GLOBAL)
set_target_properties(gRPC::grpc_cpp_plugin PROPERTIES
                      IMPORTED_LOCATION ${ESPALIER_grpc_cpp_plugin})
