# Read by ctest, with PROGRAM, of GoogleTest, PREFIX, ENVIRONMENT and LIST set: a test for each suite
# of the program, named PREFIX:SUITE. LIST keeps them until the program is built anew.
if(NOT EXISTS "${PROGRAM}")
  add_test("${PREFIX}_NOT_BUILT" "${PREFIX}_NOT_BUILT")
  return()
endif()
if(NOT EXISTS "${LIST}" OR "${PROGRAM}" IS_NEWER_THAN "${LIST}")
  execute_process(COMMAND "${PROGRAM}" --gtest_list_tests OUTPUT_VARIABLE output
                  RESULT_VARIABLE result)
  string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." suites "${output}")
  if(NOT result EQUAL 0 OR NOT suites)
    message(FATAL_ERROR "${PROGRAM} lists no tests (${result}): ${output}")
  endif()
  set(text "")
  foreach(suite IN LISTS suites)
    string(STRIP "${suite}" suite)
    string(REGEX REPLACE "\\.$" "" suite "${suite}")
    set(name "[==[${PREFIX}:${suite}]==]")
    string(APPEND text "add_test(${name} [==[${PROGRAM}]==] [==[--gtest_filter=${suite}.*]==])\n"
           "set_tests_properties(${name} PROPERTIES TIMEOUT 900"
           " ENVIRONMENT [==[${ENVIRONMENT}]==])\n")
  endforeach()
  file(WRITE "${LIST}" "${text}")
endif()
include("${LIST}")
