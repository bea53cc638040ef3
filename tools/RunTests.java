import java.io.PrintWriter;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.junit.Test;
import org.junit.internal.runners.statements.FailOnTimeout;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Runner;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.manipulation.NoTestsRemainException;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;
import org.junit.runners.BlockJUnit4ClassRunner;
import org.junit.runners.Suite;
import org.junit.runners.model.FrameworkMethod;
import org.junit.runners.model.InitializationError;
import org.junit.runners.model.Statement;

/**
 * Runs tests of JUnit 4 and writes the outcome of each as XML.
 *
 * <p>Usage: RunTests RESULTS.xml SECONDS [-Class#method ...] [package.Class | package.Class#method] ... A minus sign before
 * a method leaves it out. A test that takes longer than SECONDS fails. Classes without tests are passed over.
 */
public class RunTests {
    public static void main(String[] arguments) throws Exception {
        Map<String, Set<String>> wanted = new HashMap<>();
        Set<String> unwanted = new HashSet<>();
        List<String> classes = new ArrayList<>();
        for (int i = 2; i < arguments.length; i++) {
            if (arguments[i].startsWith("-")) {
                unwanted.add(arguments[i].substring(1));
                continue;
            }
            String[] parts = arguments[i].split("#");
            Set<String> methods = wanted.get(parts[0]);
            if (methods == null) {
                classes.add(parts[0]);
                wanted.put(parts[0], methods = new HashSet<>());
            }
            if (parts.length > 1) methods.add(parts[1]);
        }
        Filter filter = new Filter() {
            @Override public boolean shouldRun(Description test) {
                if (test.isSuite()) return true;
                Set<String> methods = wanted.get(test.getClassName());
                return (methods.isEmpty() || methods.contains(test.getMethodName()))
                    && !unwanted.contains(test.getTestClass().getSimpleName() + "#" + test.getMethodName());
            }
            @Override public String describe() { return "tests that are asked for"; }
        };
        List<Runner> runners = new ArrayList<>();
        for (String name : classes) {
            Class<?> type = Class.forName(name);
            boolean hasTests = Arrays.stream(type.getMethods()).anyMatch(one -> one.isAnnotationPresent(Test.class));
            if (!hasTests || Modifier.isAbstract(type.getModifiers())) continue;
            Runner runner = new Limited(type, Long.parseLong(arguments[1]));
            try {
                filter.apply(runner);
                runners.add(runner);
            } catch (NoTestsRemainException e) {
                // All of its tests are left out.
            }
        }
        boolean passed;
        try (PrintWriter out = new PrintWriter(arguments[0], "UTF-8")) {
            out.println("<testsuite>");
            JUnitCore core = new JUnitCore();
            core.addListener(new Report(out));
            passed = core.run(Request.runner(new Suite((Class<?>) null, runners) { })).wasSuccessful();
            out.println("</testsuite>");
        }
        // Threads of a test that took too long may still run.
        System.exit(passed ? 0 : 1);
    }

    /** Runs each test of a class, with what comes before and after it, in a limited time. */
    private static class Limited extends BlockJUnit4ClassRunner {
        private final long seconds;

        Limited(Class<?> type, long seconds) throws InitializationError {
            super(type);
            this.seconds = seconds;
        }

        @Override protected Statement methodBlock(FrameworkMethod method) {
            return FailOnTimeout.builder().withTimeout(seconds, TimeUnit.SECONDS).build(super.methodBlock(method));
        }
    }

    /** Writes outcomes as XML, and traces of failures to standard output. */
    private static class Report extends RunListener {
        private final PrintWriter out;
        private final Map<Description, String> outcomes = new HashMap<>();

        Report(PrintWriter out) { this.out = out; }

        @Override public void testFailure(Failure failure) {
            Description test = failure.getDescription();
            System.out.println(test + "\n" + failure.getTrace());
            outcomes.put(test, "<failure type=\"" + failure.getException().getClass().getName() + "\"/>");
            // JUnit calls testFinished for a test, but not for a class whose preparation or cleanup fails.
            if (test.isSuite()) write(test);
        }

        @Override public void testAssumptionFailure(Failure failure) {
            outcomes.putIfAbsent(failure.getDescription(), "<skipped/>");
        }

        @Override public void testIgnored(Description test) {
            outcomes.put(test, "<skipped/>");
            write(test);
        }

        @Override public void testFinished(Description test) { write(test); }

        private void write(Description test) {
            String method = test.isTest() ? test.getMethodName() : "";
            out.printf("<testcase classname=\"%s\" name=\"%s\">%s</testcase>%n",
                test.getClassName(), method, outcomes.getOrDefault(test, ""));
            out.flush();
        }
    }
}
