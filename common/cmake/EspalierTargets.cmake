# espalier_library(FOLDER [TORCH] [EXCEPT STEM...] DEPS ...): all *.cc of the folder, less main.cc,
# the other platform's and each STEM.cc.
# espalier_program(NAME MAIN [TORCH] DEPS ...)
# What is marked TORCH needs LibTorch, itself or through what it links: it is left out when
# ESPALIER_TORCH is OFF.
add_library(espalier_options INTERFACE)
target_include_directories(espalier_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(espalier_options INTERFACE ESPALIER_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                           ESPALIER_VERSION="${PROJECT_VERSION}"
                           # gRPC's targets define it with newer versions of Abseil, and what is
                           # compiled with it may not use a precompiled header made without.
                           NOMINMAX)
target_compile_options(espalier_options INTERFACE -Wall -Wextra -Wno-unused-parameter
                       -Wno-missing-field-initializers)  # designated initialisers leave defaults
if(ESPALIER_WERROR)
  target_compile_options(espalier_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(espalier_options INTERFACE -Wthread-safety)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "AppleClang" OR absl_VERSION VERSION_GREATER_EQUAL 20250814)
  # Homebrew's Abseil and gRPC, and Debian's after 13, are newer than others that we fit: hundreds of
  # warnings would hide others.
  target_compile_options(espalier_options INTERFACE -Wno-deprecated-declarations)
endif()
if(ESPALIER_SANITIZE STREQUAL "address")
  # GCC 12 takes members of LibTorch's guards for uninitialised when it instruments them.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer -g1
                      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=address,undefined)
elseif(ESPALIER_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -g1)
  add_link_options(-fsanitize=thread)
elseif(ESPALIER_SANITIZE STREQUAL "fuzzer")  # clang's alone; tests/fuzz links its main function
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined
                      -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(ESPALIER_SANITIZE)
  message(FATAL_ERROR "ESPALIER_SANITIZE is '${ESPALIER_SANITIZE}'; allowed: address, fuzzer, "
                      "thread, ''")
endif()

# Sources that this configuration leaves out: another system's, other variants. The lint asks that
# every source is in a target or named here.
function(espalier_leave_out)
  set_property(GLOBAL APPEND PROPERTY ESPALIER_LEFT_OUT ${ARGN})
endfunction()

# Writes the sources of all targets, and those left out, one a line.
function(espalier_write_sources file)
  get_property(sources GLOBAL PROPERTY ESPALIER_LEFT_OUT)
  set(pending ${CMAKE_SOURCE_DIR})
  while(pending)
    list(POP_FRONT pending folder)
    get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
    list(APPEND pending ${below})
    get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
      get_target_property(of_target ${target} SOURCES)
      foreach(source ${of_target})
        get_filename_component(path "${source}" ABSOLUTE BASE_DIR ${folder})
        list(APPEND sources ${path})
      endforeach()
    endforeach()
  endwhile()
  list(JOIN sources "\n" text)
  file(WRITE ${file} "${text}\n")
endfunction()

function(espalier_sources folder out)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "(_test|/main|_main)\\.cc$")
  set(other_system _darwin)
  if(APPLE)
    set(other_system _linux)
  endif()
  set(left_out ${sources})
  list(FILTER left_out INCLUDE REGEX "${other_system}\\.cc$")
  list(FILTER sources EXCLUDE REGEX "${other_system}\\.cc$")
  espalier_leave_out(${left_out})
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# The name of a folder's target: espalier_common_base for common/base.
function(espalier_target_name folder out)
  get_filename_component(folder ${folder} ABSOLUTE)
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${folder})
  string(REPLACE "/" "_" name "espalier_${path}")
  set(${out} ${name} PARENT_SCOPE)
endfunction()

# Whether a file includes LibTorch, itself or through headers of this project.
function(espalier_uses_torch file out)
  set(pending ${file})
  set(seen "")
  set(${out} FALSE PARENT_SCOPE)
  while(pending)
    list(POP_FRONT pending current)
    if(current IN_LIST seen OR NOT EXISTS ${current})
      continue()
    endif()
    list(APPEND seen ${current})
    file(STRINGS ${current} includes REGEX "^#include")
    if(includes MATCHES "<(torch|ATen|c10)/")
      set(${out} TRUE PARENT_SCOPE)
      return()
    endif()
    foreach(line ${includes})
      if(line MATCHES "\"((common|worker|tests)/[^\"]+)\"")
        list(APPEND pending ${CMAKE_SOURCE_DIR}/${CMAKE_MATCH_1})
      endif()
    endforeach()
  endwhile()
endfunction()

# Makes the precompiled header NAME of HEADERS once, for all targets that espalier_share_header
# gives it to. They must have its options.
function(espalier_make_header name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)  # empty: a target has a source
  if(NOT EXISTS ${source})
    file(WRITE ${source} "")
  endif()
  add_library(${name} STATIC ${source})
  target_link_libraries(${name} PRIVATE espalier_options ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -fpch-preprocess)  # for ccache
  endif()
endfunction()

function(espalier_share_header target name)
  target_precompile_headers(${target} REUSE_FROM ${name})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Winvalid-pch -fpch-preprocess)  # for ccache
  endif()
endfunction()

if(ESPALIER_TORCH)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  espalier_make_header(espalier_torch_header HEADERS ${CMAKE_SOURCE_DIR}/worker/tensor/torch.h
                       DEPS espalier_torch OpenMP::OpenMP_CXX)
endif()

# Torch files share one precompiled header: it saves about 10 s a file. Loading it takes 2 s, so
# files that do not use it go without. HEADER: another than espalier_torch_header.
function(espalier_torch_pch target)
  cmake_parse_arguments(ARG "" "HEADER" "" ${ARGN})
  if(NOT ARG_HEADER)
    set(ARG_HEADER espalier_torch_header)
  endif()
  target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  espalier_share_header(${target} ${ARG_HEADER})
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    espalier_uses_torch(${path} uses_torch)
    if(NOT uses_torch)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

function(espalier_library folder)
  cmake_parse_arguments(ARG "TORCH" "" "EXCEPT;DEPS" ${ARGN})
  if(ARG_TORCH AND NOT ESPALIER_TORCH)
    return()
  endif()
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  espalier_target_name(${dir} name)
  espalier_sources(${dir} sources)
  foreach(stem ${ARG_EXCEPT})
    list(FILTER sources EXCLUDE REGEX "/${stem}\\.cc$")
    espalier_leave_out(${dir}/${stem}.cc)
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PRIVATE espalier_options)
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    if(ARG_TORCH)
      espalier_torch_pch(${name})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

function(espalier_program name main)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS" ${ARGN})
  if(ARG_TORCH AND NOT ESPALIER_TORCH)
    return()
  endif()
  add_executable(${name} ${main})
  target_link_libraries(${name} PRIVATE espalier_options ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()
