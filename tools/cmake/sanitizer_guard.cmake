# A sanitizer report fails the test run even where the test itself passes.
#
# Criterion runs each test in a child and ignores LeakSanitizer's exit status, so every report goes
# to <build>/san.PID and one test, ordered after all others, fails if there is any. A file that
# ctest reads at its start sets the environment, so that a plain `ctest` has it as well as a preset.
if(NOT SANITIZE)
	return()
endif()

function(railyard_collect_tests dir out)
	get_property(names DIRECTORY ${dir} PROPERTY TESTS)
	get_property(subdirs DIRECTORY ${dir} PROPERTY SUBDIRECTORIES)
	foreach(sub IN LISTS subdirs)
		railyard_collect_tests(${sub} below)
		list(APPEND names ${below})
	endforeach()
	set(${out} ${names} PARENT_SCOPE)
endfunction()

set(log ${PROJECT_BINARY_DIR}/san)
file(WRITE ${PROJECT_BINARY_DIR}/sanitizer_env.cmake "\
file(GLOB stale \"${log}.*\")
if(stale)
	file(REMOVE \${stale})
endif()
set(ENV{ASAN_OPTIONS} \"log_path=${log}:detect_stack_use_after_return=1:strict_string_checks=1\")
set(ENV{UBSAN_OPTIONS} \"log_path=${log}:print_stacktrace=1\")
set(ENV{TSAN_OPTIONS} \"log_path=${log}:second_deadlock_stack=1\")
")
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY
	TEST_INCLUDE_FILES ${PROJECT_BINARY_DIR}/sanitizer_env.cmake)

railyard_collect_tests(${PROJECT_SOURCE_DIR} tests)
add_test(NAME sanitizer_reports COMMAND ${CMAKE_COMMAND} -DLOG=${log}
	-P ${CMAKE_CURRENT_LIST_DIR}/sanitizer_reports.cmake)
set_tests_properties(sanitizer_reports PROPERTIES DEPENDS "${tests}" RUN_SERIAL TRUE)
